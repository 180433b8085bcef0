// Command guest is PID 1 of test sandboxes: it answers JSON requests, one a
// line, on descriptor 3.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

type request struct {
	Op   string   `json:"op"`
	Argv []string `json:"argv"`
	UID  uint32   `json:"uid"`
	N    int64    `json:"n"`
}

type reply struct {
	Out  string `json:"out"`
	Code int    `json:"code"`
	Err  string `json:"err"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "self" {
		fmt.Println("re-executed")
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "ids" {
		fmt.Println(os.Getuid(), os.Geteuid())
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "stat" {
		for _, path := range os.Args[2:] {
			var st syscall.Stat_t
			if err := syscall.Lstat(path, &st); err != nil {
				fmt.Println(err)
				continue
			}
			fmt.Printf("%d:%d %o\n", st.Uid, st.Gid, st.Mode&0o7777)
		}
		return
	}
	down := os.NewFile(3, "down")
	in := bufio.NewReader(down)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			os.Exit(3)
		}
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			os.Exit(4)
		}
		b, _ := json.Marshal(serve(q))
		if _, err := down.Write(append(b, '\n')); err != nil {
			os.Exit(5)
		}
	}
}

func serve(q request) (r reply) {
	switch q.Op {
	case "echo":
		r.Out = fmt.Sprint("pid ", os.Getpid(), " cpus ", runtime.NumCPU())
	case "up":
		_, err := io.WriteString(os.NewFile(4, "up"), "hello up\n")
		if err != nil {
			r.Err = err.Error()
		}
	case "exit":
		os.Exit(int(q.N))
	case "alloc":
		b := make([]byte, q.N)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		r.Out = fmt.Sprint(len(b))
		runtime.KeepAlive(b)
	case "run":
		cmd := exec.Command(q.Argv[0], q.Argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: q.UID, Gid: q.UID}}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			r.Err = err.Error()
		}
		r.Out = out.String()
		if cmd.ProcessState != nil {
			r.Code = cmd.ProcessState.ExitCode()
		}
	}
	return r
}
