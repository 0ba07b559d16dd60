package wire

// ToolsSocket is the address of the service "tools" in a sandbox, in the abstract namespace of the network.
const ToolsSocket = "@workcell-tools"

// Limits of services and deadlines.
const (
	MaxConns     = 128    // open connections of a listener
	MaxDials     = 128    // open connections to ports
	MaxConnWait  = 60_000 // maximum time of a connection before an accept, in milliseconds
	MaxExtension = 60_000 // maximum extension by one DeadlineRequest, in milliseconds
)

// ServiceNetworks returns the names of all services, each with the network for commands, "unix" or "tcp". Only
// connections to a Unix service identify their command.
func ServiceNetworks() map[string]string {
	return map[string]string{
		"tools":  "unix",
		"model":  "tcp",
		"egress": "tcp",
	}
}

// ListenRequest makes the sender accept the connections to a service. It replaces the previous host.
type ListenRequest struct {
	Name       string `json:"name"`
	MaxConns   int    `json:"max_conns"` // open connections, 1 to MaxConns
	WaitMillis int64  `json:"wait_ms"`   // maximum time of a connection before an accept, 1 to MaxConnWait
}

// ListenResult is the response to ListenRequest.
type ListenResult struct {
	Address string `json:"address"` // for example "@workcell-tools" or "127.0.0.1:40123"
}

// AcceptRequest waits for a connection to a service for which the same host listens.
type AcceptRequest struct {
	Name string `json:"name"`
	// Listen is the ID of the stream with the host's ListenRequest. Zero means the latest one; hosts before November 2026
	// send no ID.
	Listen uint32 `json:"listen,omitempty"`
}

// DialRequest connects to a TCP port on which a process in the sandbox listens.
type DialRequest struct {
	// Address is HOST:PORT. The host is a loopback address or "localhost", for which IPv4 and IPv6 are tried.
	Address string `json:"address"`
}

// Dialed is the response to DialRequest.
type Dialed struct {
	Local  string `json:"local"`  // address of the guest agent's end
	Remote string `json:"remote"` // address of the server
}

// Accepted is the response to AcceptRequest. The last three fields are empty for TCP.
type Accepted struct {
	ConnID  string `json:"conn_id"`           // 16 hexadecimal digits
	ExecID  string `json:"exec_id,omitempty"` // command of the connecting process
	PID     int    `json:"pid,omitempty"`     // ID of the process inside the sandbox
	Program string `json:"program,omitempty"` // name of the process in printable ASCII, for example "python3"
}
