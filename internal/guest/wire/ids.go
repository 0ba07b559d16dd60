package wire

// ValidExecID reports whether id is a valid command ID: 1 to MaxExecID characters from a-z, A-Z, 0-9, '_', and '-'.
func ValidExecID(id string) bool {
	if id == "" || len(id) > MaxExecID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}
