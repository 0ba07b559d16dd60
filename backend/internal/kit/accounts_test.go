package kit_test

import (
	"testing"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// TestAccounts verifies that the sandbox's user comes before the users of the image, with the image's shell.
func TestAccounts(t *testing.T) {
	t.Parallel()
	const passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\nnode:x:1000:1000::/home/node:/bin/zsh\nodd:x:7:7::/:sh"
	const home = "::/workspace/.workcell/home:"
	none, odd := kit.NoAccounts(), "\x00\xff:::::::\n\n:"
	for _, test := range []struct {
		passwd, group string
		user          kit.User
		first, gid    string
	}{
		{string(none["passwd"]), string(none["group"]), kit.User{UID: 1000, GID: 50}, "user:x:1000:50" + home + "/bin/sh\n", "user:x:50:\n"},
		{passwd, "g:x:1:", kit.User{UID: 1000, GID: 0}, "user:x:1000:0" + home + "/bin/zsh\n", "root:x:0:\n"},
		{passwd, "", kit.User{}, "root:x:0:0" + home + "/bin/bash\n", "root:x:0:\n"},
		{passwd, "", kit.User{UID: 7, GID: 7}, "user:x:7:7" + home + "/bin/sh\n", "user:x:7:\n"},
		{odd, odd, kit.User{UID: 1<<31 - 1, GID: 1}, "user:x:2147483647:1" + home + "/bin/sh\n", "user:x:1:\n"},
	} {
		image := kit.Accounts{"passwd": []byte(test.passwd), "group": []byte(test.group)}
		got := image.With(test.user)
		if string(got["passwd"]) != test.first+test.passwd || string(got["group"]) != test.gid+test.group {
			t.Errorf("user %s: passwd %q, group %q", test.user, got["passwd"], got["group"])
		}
	}
}
