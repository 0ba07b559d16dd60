package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// interpreterWait is the maximum time until a replaced interpreter listens again.
const interpreterWait = 2 * time.Second

// interpret runs the program on standard input in the interpreter of a language, whose socket is in a directory. It
// prints the program's output and exits with the program's exit code.
func interpret(args []string, in io.Reader, out, errs io.Writer) int {
	if len(args) != 2 {
		return fail(errs, errors.New("usage: workcell-guest interpret DIR LANGUAGE"))
	}
	status, err := runIn(filepath.Join(args[0], args[1]+".sock"), in, out, errs)
	if err != nil {
		fail(errs, err)
		return exitUnavailable
	}
	return status
}

// runIn runs the program in in with the interpreter at an address.
func runIn(address string, in io.Reader, out, errs io.Writer) (int, error) {
	code, err := io.ReadAll(in)
	if err != nil {
		return 0, err
	}
	conn, err := dialInterpreter(address)
	if err != nil {
		return 0, fmt.Errorf("the interpreter does not answer: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the process exits
	program := map[string]string{"exec": os.Getenv(wire.ExecVariable), "code": string(code)}
	if err := json.NewEncoder(conn).Encode(program); err != nil {
		return 0, err
	}
	status, err := relay(conn, out, errs)
	if err != nil {
		return 0, errors.New("the interpreter exited")
	}
	return status, nil
}

// dialInterpreter connects to an interpreter even while it is starting.
func dialInterpreter(address string) (conn net.Conn, err error) {
	for end := time.Now().Add(interpreterWait); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if conn, err = net.Dial("unix", address); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// relay copies the program's output until the program has ended, and returns the exit code.
func relay(r io.Reader, out, errs io.Writer) (int, error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0, err
		}
		n := binary.BigEndian.Uint32(head[1:])
		to := out
		switch head[0] {
		case 'e':
			to = errs
		case 'x':
			text := make([]byte, min(n, 8))
			if _, err := io.ReadFull(r, text); err != nil {
				return 0, err
			}
			return strconv.Atoi(string(text))
		}
		if _, err := io.CopyN(to, r, int64(n)); err != nil {
			return 0, err
		}
	}
}
