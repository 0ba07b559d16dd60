package kit

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Accounts contains the contents of the account files in /etc, by name.
type Accounts map[string][]byte

// AccountFiles returns the names of the account files in /etc.
func AccountFiles() []string { return []string{"passwd", "group"} }

// Hostname is the host name of every sandbox.
const Hostname = "workcell"

// NetworkFiles returns the contents of the files in /etc for the network, by name, for engines without such files. If
// resolvers is empty, the sandbox has no network.
func NetworkFiles(resolvers string) map[string]string {
	return map[string]string{
		"hosts":       "127.0.0.1\tlocalhost " + Hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"hostname":    Hostname + "\n",
		"resolv.conf": cmp.Or(resolvers, noNameServer),
	}
}

// noNameServer is /etc/resolv.conf of a sandbox without a network. The address is for documentation (RFC 5737). Without
// a name server, programs would ask their own loopback interface, and the guest, which counts packets without a route,
// would not notice the lookups.
const noNameServer = "nameserver 192.0.2.53\n"

// MaxAccounts is the maximum size, in bytes, of an image's account file. Larger files are ignored.
const MaxAccounts = 1 << 20

// NoAccounts returns the accounts for sandboxes whose image is unknown or has no users.
func NoAccounts() Accounts {
	return Accounts{
		"passwd": []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"),
		"group":  []byte("root:x:0:\nnogroup:x:65534:\n"),
	}
}

// NamesUser reports whether a sandbox gets account files with the sandbox's user. The root user of a writable root has
// the image's files, because installers replace them.
func NamesUser(u User, root backend.RootMode) bool { return u.UID != 0 || root != backend.RootWritable }

// With returns accounts with the entries of the sandbox's user before all entries of a. Later entries with the same
// number are kept, but programs use the first entry. The user has the shell of the image's user with this number.
func (a Accounts) With(u User) Accounts {
	name, shell := wire.UserName(int(u.UID)), "/bin/sh"
	for line := range bytes.Lines(a["passwd"]) {
		fields := strings.Split(strings.TrimSuffix(string(line), "\n"), ":")
		if len(fields) == 7 && fields[2] == strconv.FormatUint(uint64(u.UID), 10) {
			if strings.HasPrefix(fields[6], "/") {
				shell = fields[6]
			}
			break
		}
	}
	home, group := wire.Home(backend.Workdir), wire.UserName(int(u.GID))
	return Accounts{
		"passwd": fmt.Appendf(nil, "%s:x:%d:%d::%s:%s\n%s", name, u.UID, u.GID, home, shell, a["passwd"]),
		"group":  fmt.Appendf(nil, "%s:x:%d:\n%s", group, u.GID, a["group"]),
	}
}
