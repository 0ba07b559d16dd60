package wire

import "strings"

// ValidExecID reports whether id is a valid command ID: 1 to MaxExecID characters from a-z, A-Z, 0-9, '_', and '-'.
func ValidExecID(id string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	return id != "" && len(id) <= MaxExecID && strings.Trim(id, allowed) == ""
}
