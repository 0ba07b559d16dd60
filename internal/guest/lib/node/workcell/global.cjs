"use strict";
// Preloaded with --require, for modules, which NODE_PATH does not reach.
const {tools, result} = require("./index.cjs");
Object.assign(globalThis, {tools, result});
