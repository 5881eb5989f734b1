// Expands RFC 6570 templates: argv holds JSON, an array of [template, values]; prints an array of texts.
const { URI } = require('uri-template-lite');

const given = JSON.parse(process.argv[2]);
console.log(JSON.stringify(given.map(([template, values]) => new URI.Template(template).expand(values))));
