'use strict';

// Turns a title into the part of a URL that names it.
function slug(text) {
  return text
    .replace(/'/g, '')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-+|-+$/g, '');
}

module.exports = { slug };
