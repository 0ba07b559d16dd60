package egress

import (
	"testing"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/egress"
)

// TestCurl: curl can connect to allowed hosts with HTTP and through a tunnel, and gets the reason for refused
// connections.
func TestCurl(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d := newDesk(t, engine, egress.Limits{})
		port := server(t, says("hello from outside"))
		s := d.open(netImage, "good.test:"+port)
		for _, how := range []string{"", "--proxytunnel"} {
			d.prints(s, "curl -sS "+how+" http://good.test:"+port+"/secret-path", "hello from outside")
		}
		evil := "http://evil.test:" + port
		d.fails(s, "curl -sS --fail-with-body "+evil, "network.allow does not name it", "network.allow")
		d.fails(s, "curl -sS --proxytunnel "+evil, "403", "network.allow")
		direct := "no direct network"
		if engine == "kubernetes" {
			direct = "" // packets leave the pod, so the kernel does not count them as refused
		}
		d.fails(s, "curl -sS --noproxy '*' http://good.test:"+port, "Could not resolve", direct)
	})
}
