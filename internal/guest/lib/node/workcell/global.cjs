"use strict";
// Preloaded with --require for ES modules, because they ignore NODE_PATH.
const {tools, result} = require("./index.cjs");
Object.assign(globalThis, {tools, result});
