package child

import "syscall"

// tie has the kernel end the child when we die.
func tie(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
