package rules

// HostPresets returns the names of the presets.
var HostPresets = presetNames
