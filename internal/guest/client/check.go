package client

import (
	"bytes"
	"cmp"
	"crypto/sha256"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func checkStatus(id string, st *wire.ExecStatus) error {
	if st.ExecID != id || !wire.ValidExecID(st.ExecID) {
		return protocolErrorf("answer about another exec")
	}
	switch st.State {
	case wire.ExecRunning, wire.ExecCompleted, wire.ExecTimedOut, wire.ExecKilled, wire.ExecOOMKilled,
		wire.ExecQuotaKilled:
	default:
		return protocolErrorf("unknown exec state")
	}
	if st.ExitCode < 0 || st.ExitCode > 255 || st.DurationMicros < 0 || st.StdoutBytes < 0 || st.StderrBytes < 0 ||
		st.PeakRSSBytes < 0 || min(st.OOMKills, st.ForksDenied, st.TmpFull, st.ShmFull, st.Direct, st.EndedMillis) < 0 ||
		len(st.Signal) > 16 {
		return protocolErrorf("exec status out of range")
	}
	return nil
}

func checkResult(req *wire.RunRequest, res *wire.RunResult) error {
	if err := checkStatus(req.ExecID, &res.ExecStatus); err != nil {
		return err
	}
	for _, o := range []*wire.Output{&res.Stdout, &res.Stderr} {
		if len(o.Head) > max(0, req.HeadBytes) || len(o.Tail) > max(0, req.TailBytes) ||
			min(o.Omitted, o.Total) < 0 || o.Total-int64(len(o.Head))-int64(len(o.Tail)) != o.Omitted {
			return protocolErrorf("output does not add up")
		}
	}
	return nil
}

func checkRead(req *wire.ReadRequest, res *wire.ReadResult) error {
	if err := checkStatus(req.ExecID, &res.Status); err != nil {
		return err
	}
	last := req.SinceSeq
	for i := range res.Chunks {
		ch := &res.Chunks[i]
		if ch.Seq <= last || ch.Stream != wire.Stdout && ch.Stream != wire.Stderr {
			return protocolErrorf("chunks out of order")
		}
		last = ch.Seq
	}
	if res.NextSeq < last || res.Dropped < 0 || req.MaxChunks > 0 && len(res.Chunks) > req.MaxChunks {
		return protocolErrorf("read result out of range")
	}
	return nil
}

func checkInfo(info *wire.FileInfo) error {
	switch info.Type {
	case wire.TypeFile, wire.TypeDir, wire.TypeSymlink, wire.TypeOther:
	default:
		return protocolErrorf("unknown file type")
	}
	if info.Path == "" || info.Size < 0 || info.Mode > 0o7777 {
		return protocolErrorf("file description out of range")
	}
	return nil
}

func checkExecs(list *wire.ExecList) error {
	for i := range list.Execs {
		if err := checkStatus(list.Execs[i].ExecID, &list.Execs[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkRemoved(res *wire.RemoveResult) error {
	if res.Deleted < 0 {
		return protocolErrorf("%d entries deleted", res.Deleted)
	}
	return nil
}

func checkList(req *wire.ListRequest, res *wire.ListResult) error {
	limit := cmp.Or(max(req.Limit, 0), wire.DefaultListEntries)
	if len(res.Entries) > limit || res.Total < int64(len(res.Entries)) {
		return protocolErrorf("list out of range")
	}
	for i := range res.Entries {
		if err := checkInfo(&res.Entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkDigests(req *wire.DigestRequest, res *wire.DigestResult) error {
	if len(res.Digests) != len(req.Paths) {
		return protocolErrorf("%d digests of %d paths", len(res.Digests), len(req.Paths))
	}
	for _, d := range res.Digests {
		if len(d.SHA256) != 0 && len(d.SHA256) != sha256.Size || len(d.Target) > maxLinkTarget ||
			bytes.IndexByte(d.Target, 0) >= 0 {
			return protocolErrorf("digest out of range")
		}
	}
	return nil
}

// maxLinkTarget is the maximum length of a symbolic link's target, the kernel's PATH_MAX.
const maxLinkTarget = 4096
