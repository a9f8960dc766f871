//go:build !linux

package postgres

import "syscall"

// limitUnacked has no portable counterpart; keep-alives alone find a dead host here.
func limitUnacked(_, _ string, _ syscall.RawConn) error { return nil }
