package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Error codes of the server (https://www.postgresql.org/docs/current/errcodes-appendix.html).
const (
	undefinedTable  = "42P01"
	undefinedSchema = "3F000"
	uniqueViolation = "23505"
	tooManyClients  = "53300"
	serialization   = "40001"
	deadlock        = "40P01"
	readOnly        = "25006"
	locked          = "55P03"
	idleTransaction = "25P03" // the server has closed the connection
)

// IsConflict reports whether err means that a row already exists.
func IsConflict(err error) bool { return codeOf(err) == uniqueViolation }

func codeOf(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// isLost reports whether err concerns the connection or the state of the server, not the statement.
func isLost(err error) bool {
	switch code := codeOf(err); {
	case code == tooManyClients, code == serialization, code == deadlock, code == locked, code == readOnly,
		code == idleTransaction:
		return true
	case code != "":
		// 08: connection problems. 57P01 to 57P05: the server stops, has crashed, is starting, or has closed this connection.
		return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P0") && code != "57P04"
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(net.Error)) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) ||
		strings.Contains(err.Error(), "conn closed") // pgx has no error value for it
}

// Error adds the class to a server error. It returns other errors unchanged, including context errors.
func (db *DB) Error(err error) error {
	if err == nil {
		return nil
	}
	if kind := classify(err); kind != nil {
		return fmt.Errorf("%s: %w: %w", db.where, kind, err)
	}
	if codeOf(err) != "" {
		return fmt.Errorf("%s: %w", db.where, err)
	}
	return err
}

func classify(err error) error {
	code := codeOf(err)
	switch {
	case strings.HasPrefix(code, "28"), code == "42501", code == "3D000": // authentication, privileges, missing database
		return ErrRefused
	case code == "XX001", code == "XX002": // damaged table or index; XX000 is any bug of the server or an extension
		return ErrCorrupt
	case code == "53100":
		return ErrFull
	case isLost(err), errors.As(err, new(*pgconn.ConnectError)):
		return ErrUnreachable
	}
	return nil
}

// asksFor reports whether a URL sets a parameter, for example sslmode.
func asksFor(address, name string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Query().Has(name)
}
