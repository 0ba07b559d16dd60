package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"mime"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// scheme is the URI scheme of workspace files: sandbox://<sandbox_id>/<path>.
const scheme = "sandbox"

// maxResources is the maximum number of resources in one answer.
const maxResources = 1000

// addResources exposes the files of open sandboxes as resources. It does not use the SDK's resource list, which is the
// same for all clients of a server.
func (s *Server) addResources(srv *mcp.Server, find resolver) {
	srv.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "workspace-file", Title: "File of a sandbox", URITemplate: scheme + "://{sandbox_id}/{+path}",
		Description: "A file below /workspace of an open sandbox. A directory returns its entries, one per line.",
	}, func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		sc, err := find(ctx, req.Session, req.Extra)
		if err != nil {
			return nil, err
		}
		return s.readResource(ctx, sc, req.Params.URI)
	})
	srv.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			list, ok := req.(*mcp.ListResourcesRequest)
			if !ok {
				return next(ctx, method, req)
			}
			sc, err := find(ctx, list.Session, list.Extra)
			if err != nil {
				return nil, err
			}
			return s.listResources(ctx, sc, cmp.Or(list.Params, &mcp.ListResourcesParams{}).Cursor)
		}
	})
}

// listResources lists the files of the scope's open sandboxes. The cursor is the number of files in earlier answers.
// Clients in a common scope must use sandbox_fs_list, because a list would reveal the sandbox ids of other clients.
func (s *Server) listResources(ctx context.Context, sc *scope, cursor string) (*mcp.ListResourcesResult, error) {
	skip, err := strconv.ParseUint(cmp.Or(cursor, "0"), 10, 31)
	if err != nil {
		return nil, invalidParams("the cursor is unknown")
	}
	res := &mcp.ListResourcesResult{Cacheable: mcp.Cacheable{CacheScope: "private"}, Resources: []*mcp.Resource{}}
	if sc.handles && !sc.named {
		return res, nil
	}
	all, _, err := s.all(ctx, sc, "")
	if err != nil {
		return nil, err
	}
	files := uint64(0)
	for _, f := range all {
		opts := sandbox.ListFilesOptions{Recursive: true, Limit: sandbox.MaxListEntries}
		list, err := f.session.ListFiles(ctx, ".", opts)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			continue // the sandbox was closed or died since
		}
		for _, e := range list.Entries {
			if !isFile(e) || s.checkFile(e.Path, e.Size) != nil {
				continue // resources/read refuses it
			}
			if len(res.Resources) == maxResources {
				res.NextCursor = strconv.FormatUint(files, 10)
				return res, nil
			}
			if files++; files > skip {
				res.Resources = append(res.Resources, &mcp.Resource{
					URI: resourceURI(f.session.ID(), e.Path), Name: e.Path, Size: e.Size, MIMEType: mediaType(e.Path),
				})
			}
		}
	}
	return res, nil
}

// resourceURI returns the URI of a file. It percent-encodes names to ensure exactly one URI for each name.
func resourceURI(id, name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return scheme + "://" + id + "/" + strings.Join(parts, "/")
}

// parseURI is the inverse of resourceURI. The name of the workspace is ".".
func parseURI(text string) (id, name string, ok bool) {
	rest, ok := strings.CutPrefix(text, scheme+"://")
	id, escaped, _ := strings.Cut(rest, "/")
	name, err := url.PathUnescape(escaped)
	ok = ok && err == nil && id != "" && !strings.ContainsAny(escaped, "?#")
	return id, cmp.Or(name, "."), ok
}

func (s *Server) readResource(ctx context.Context, sc *scope, uri string) (*mcp.ReadResourceResult, error) {
	id, name, ok := parseURI(uri)
	if !ok {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	from, err := s.one(ctx, sc, id)
	if err != nil {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	info, failed := from.StatFile(ctx, name)
	var fail *toolspec.Error
	if failed == nil && info.Type != sandbox.TypeDir {
		fail = s.checkFile(name, info.Size)
	}
	err = decided(ctx, sc, "resources/read", fail)
	switch {
	case err != nil:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cannot record the request"}
	case fail != nil:
		return nil, invalidParams(fail.Message)
	case failed != nil:
		return nil, resourceError(uri, failed)
	case info.Type == sandbox.TypeDir:
		return directory(ctx, from, uri, name)
	}
	data, _, err := from.ReadFileBytes(ctx, name, sandbox.ReadFileOptions{Limit: maxGotBytes + 1})
	if err != nil {
		return nil, resourceError(uri, err)
	}
	switch fail := s.checkSize(name, int64(len(data))); { // it may have grown
	case len(data) > maxGotBytes:
		return nil, invalidParams("the file is too large for a resource; use sandbox_fs_read")
	case fail != nil:
		return nil, invalidParams(fail.Message)
	}
	c := &mcp.ResourceContents{URI: uri, MIMEType: mediaType(name)}
	if utf8.Valid(data) && !bytes.ContainsRune(data, 0) {
		c.Text = string(data)
	} else {
		c.Blob = data
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

// mediaType returns the media type for the extension of a file name. It is empty for an unknown extension.
func mediaType(name string) string { return mime.TypeByExtension(path.Ext(name)) }

// directory returns the entries of a directory. Names of subdirectories end with a slash.
func directory(ctx context.Context, s *session.Session, uri, name string) (*mcp.ReadResourceResult, error) {
	list, err := s.ListFiles(ctx, name, sandbox.ListFilesOptions{Limit: maxResources})
	if err != nil {
		return nil, resourceError(uri, err)
	}
	var b strings.Builder
	for _, e := range list.Entries {
		b.WriteString(e.Path)
		if e.Type == sandbox.TypeDir {
			b.WriteByte('/')
		}
		b.WriteByte('\n')
	}
	c := &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: b.String()}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

// resourceError converts an error to a protocol error with the same details as a tool error.
func resourceError(uri string, err error) error {
	switch {
	case errors.Is(err, backend.ErrNotFound), errors.Is(err, backend.ErrClosed):
		return mcp.ResourceNotFoundError(uri)
	case errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrPermission), errors.Is(err, backend.ErrTooLarge):
		return invalidParams("cannot read the file: it must be a regular file below /workspace")
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cannot read the file now"}
}

func invalidParams(message string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
}
