package cluster

import "syscall"

// tie has the kernel kill the child when we die.
func tie(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
