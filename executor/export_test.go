package executor

// Lines returns a writer that calls line for each line.
func Lines(line func(line []byte, cut bool) error) interface {
	Write([]byte) (int, error)
} {
	return &lineWriter{line: line}
}

// Flush passes on the last line of a writer returned by Lines.
func Flush(w any) error { return w.(*lineWriter).end() }
