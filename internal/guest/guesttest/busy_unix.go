//go:build unix

package guesttest

import "syscall"

const errBusy = syscall.ETXTBSY
