// How hey-api generates: as it does by default, except that Node itself can find the files.
const [input, path] = [process.env.SHOP_DOCUMENT, process.env.SHOP_CLIENT];

export default {
    input,
    output: { path, module: { extension: '.ts' } },
    plugins: ['@hey-api/client-fetch', '@hey-api/typescript', '@hey-api/sdk'],
    logs: { level: 'silent', file: false },
};
