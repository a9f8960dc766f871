// Package child runs processes that end with this one: in order where they can, and by the kernel's hand if this one is killed.
package child
