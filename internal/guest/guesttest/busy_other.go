//go:build !unix

package guesttest

import "errors"

var errBusy = errors.New("text file busy")
