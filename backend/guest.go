package backend

// Guest is the program that runs as the main process of every sandbox.
type Guest struct {
	// Version names the program's content: two programs must never share a version.
	Version string
	// Binary returns the static Linux executable for "amd64" or "arm64".
	Binary func(arch string) ([]byte, error)
}
