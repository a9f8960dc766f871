package topology

import (
	"slices"
	"strings"
)

// removedPrefix is shared by further settings of the removed coordinator.
const removedPrefix = "WIGGLE_COORD_"

type replacement struct{ name, instead string }

// replacements are the settings of the removed coordinator, with what does their work now (SHD-17).
func replacements() []replacement {
	return []replacement{
		{"WIGGLE_COORDINATOR_URL", "there is no coordinator: list the databases as shards in " + EnvTopology},
		{"WIGGLE_NAMESPACE", "one cluster serves every namespace: callers name theirs in each request"},
		{"WIGGLE_CELL_ID", "cells are shards now: give each database an id among the shards in " + EnvTopology},
		{"WIGGLE_REGION", "say where a database runs by the zone of its primary and replicas in " + EnvTopology},
		{"WIGGLE_ADVERTISE_HOST", "processes no longer register an address: callers connect to the router"},
		{"WIGGLE_ENDPOINT_REWRITE", "callers are not sent to other endpoints: they connect to the router, which routes by the id"},
	}
}

// coordReplacement is for the settings with removedPrefix.
const coordReplacement = "there is no coordinator: shards and their weights are in " + EnvTopology +
	", and each process reads it by itself"

// RemovedSettings refuses the settings of the removed coordinator among environ, which is as os.Environ returns it, and says
// what replaces each (SHD-17). Load does so too, but can look up only those it knows by their full names, not the
// WIGGLE_COORD_ ones, so a process calls both. It returns nil if there is none.
func RemovedSettings(environ []string) *Problems {
	set := map[string]bool{}
	c := &collector{}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, text, _ := strings.Cut(entry, "=")
		if strings.TrimSpace(text) == "" {
			continue
		}
		set[name] = true
		if strings.HasPrefix(name, removedPrefix) {
			addRemoved(c, replacement{name, coordReplacement})
		}
	}
	removedSettings(c, func(name string) bool { return set[name] })
	return c.problems()
}

func removedSettings(c *collector, set func(name string) bool) {
	for _, r := range replacements() {
		if set(r.name) {
			addRemoved(c, r)
		}
	}
}

func addRemoved(c *collector, r replacement) {
	c.addf(placeSetting(r.name), "is a setting of the coordinator, which was removed; unset it: %s", r.instead)
}
