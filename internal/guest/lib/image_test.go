package lib_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestImages runs the library with the interpreters of images that sandboxes use, as their user.
func TestImages(t *testing.T) {
	t.Parallel()
	for image, tc := range map[string]struct {
		argv          []string
		program, want string
	}{
		"workcell/python:3.11": {[]string{"python3", "-c"}, `from workcell import *
import asyncio
async def main(): return await aio.orders.lookup(id="42")
print(len(tools.big.rows()), asyncio.run(main()))
` + fails(`tools.orders.refund()`, "ToolDenied") + `
print(tools.flaky.read(id=3))`, "1024 {'id': '42'}\nToolDenied\n{'id': 3}"},
		"workcell/node:22": {[]string{"node", "-e"}, inMain(`console.log((await tools.big.rows()).length, await tools.orders.lookup({id: "42"}));
console.log(await tools.orders.refund().catch(e => e.name));
console.log(await tools.flaky.read({id: 3}))`), "1024 { id: '42' }\nToolDenied\n{ id: 3 }"},
		"workcell/debian:12": {[]string{"sh", "-c"}, `cd $(dirname $(dirname $PYTHONPATH)); PATH=$PWD/bin
tools call orders.lookup '{"id":"42"}'; tools call orders.refund 2>&1; echo $?`,
			`{"id":"42"}` + "\n" + `{"code":"permission_denied","message":"too much","remediation":"Do something else.","retryable":false}` + "\n77"},
	} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			r := runtime{root: install(t), address: h.address, argv: tc.argv, image: image, shown: h.dir}
			// The sandbox's user removes results, and reaches what lies below directories of the tests' user.
			for dir := h.dir; dir != filepath.Dir(dir) && dir != os.TempDir(); dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.run(t, tc.program); got != tc.want {
				t.Errorf("printed\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}
