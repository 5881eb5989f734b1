# Put the pinned mermaid.min.js, which draws the diagrams, where the site serves it. Needs npm.
set -eu
target=docs/assets/mermaid.min.js
[ ! -f $target ] || exit 0
mkdir -p build
npm pack mermaid@12.3.0 --pack-destination build --silent
tar -xzf build/mermaid-12.3.0.tgz -C build package/dist/mermaid.min.js
echo '336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3  build/package/dist/mermaid.min.js' | sha256sum -c --quiet
mv build/package/dist/mermaid.min.js $target
