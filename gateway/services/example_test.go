package services_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"

	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/sandbox"
)

// The host adds the token. Code in the sandbox sends requests that the rules allow, and never has the token.
func ExampleNew() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s with %s", r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer api.Close()
	base, err := url.Parse(api.URL)
	if err != nil {
		log.Fatal(err)
	}
	known, err := services.New([]services.Service{{
		Name: "github", URL: base, Allow: []string{"GET /repos/**"},
		Auth: func(h http.Header) error { h.Set("Authorization", "Bearer secret-token"); return nil },
	}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	// A program passes the gateway to session.Options.Egress, and the use in session.Request.Egress.
	if _, err := egress.New(&egress.Options{Services: known}); err != nil {
		log.Fatal(err)
	}
	used, err := known.Open("sandbox", []sandbox.ServiceUse{{Name: "github"}}, func(sandbox.EgressRefusal) {})
	if err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{"/repos/acme", "/user/emails"} {
		w := httptest.NewRecorder()
		used.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://github.workcell"+path, nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 /repos/acme with [key]
	// 403 workcell: GET /user/emails is not allowed
	// Allowed: ["GET /repos/**"]. Continue without this request, or report that you need it.
}
