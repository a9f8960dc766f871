package patient

import "time"

func wait() { time.Sleep(time.Second) }
