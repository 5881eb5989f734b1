// Converts YAML documents to JSON with js-yaml: lines "source TAB target" in, "source TAB error" out.
const fs = require('node:fs')
const yaml = require('js-yaml')
for (const line of fs.readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
  const [source, target] = line.split('\t')
  try {
    const data = yaml.load(fs.readFileSync(source, 'utf8'), { schema: yaml.CORE_SCHEMA, json: true })
    fs.writeFileSync(target, JSON.stringify(data))
  } catch (error) {
    console.log(`${source}\t${String(error.message).split('\n')[0]}`)
  }
}
