'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const test = require('node:test');

const { slug } = require('./slug.js');

const cases = JSON.parse(fs.readFileSync(path.join(__dirname, '..', 'cases.json'), 'utf8'));

for (const c of cases) {
  test(`slug of ${JSON.stringify(c.text)}`, () => {
    assert.strictEqual(slug(c.text), c.slug);
  });
}
