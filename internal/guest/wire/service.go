package wire

// ToolsSocket is the address of the service "tools" in a sandbox, in the abstract namespace of its network.
const ToolsSocket = "@workcell-tools"

// Bounds of services and deadlines.
const (
	MaxConns     = 128    // open connections of a listener
	MaxDials     = 128    // open connections to ports
	MaxConnWait  = 60_000 // milliseconds that a connection waits for an accept
	MaxExtension = 60_000 // milliseconds that one DeadlineRequest may add
)

// ServiceNetworks returns the names of all services, and the network by which commands connect to each, "unix" or
// "tcp". Connections to a Unix service are known by the exec that they come from.
func ServiceNetworks() map[string]string {
	return map[string]string{
		"tools":  "unix",
		"model":  "tcp",
		"egress": "tcp",
	}
}

// ListenRequest makes the sender the one that accepts the connections to a service, in the place of whoever was before.
type ListenRequest struct {
	Name       string `json:"name"`
	MaxConns   int    `json:"max_conns"` // open at once, 1 to MaxConns
	WaitMillis int64  `json:"wait_ms"`   // how long a connection waits for an accept, 1 to MaxConnWait
}

// ListenResult answers ListenRequest.
type ListenResult struct {
	Address string `json:"address"` // "@workcell-tools", "127.0.0.1:40123"
}

// AcceptRequest waits for a connection to a service that the same host listens as.
type AcceptRequest struct {
	Name string `json:"name"`
}

// DialRequest connects to a TCP port that something inside the sandbox listens on.
type DialRequest struct {
	// Address is HOST:PORT. The host is "localhost", for which both families are tried, or an address of the loopback.
	Address string `json:"address"`
}

// Dialed answers DialRequest.
type Dialed struct {
	Local  string `json:"local"`  // address of the guest's end
	Remote string `json:"remote"` // address that was connected to
}

// Accepted answers AcceptRequest. The last three fields are empty on TCP.
type Accepted struct {
	ConnID  string `json:"conn_id"`           // 16 hexadecimal digits
	ExecID  string `json:"exec_id,omitempty"` // that the connecting process belongs to
	PID     int    `json:"pid,omitempty"`     // of that process, inside the sandbox
	Program string `json:"program,omitempty"` // the name of that process, printable ASCII
}
