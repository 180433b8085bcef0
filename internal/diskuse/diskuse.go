// Package diskuse tells what files take of a disk: blocks and not lengths, so that
// holes do not count, and a file with several names once.
package diskuse

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Inode is what a file is on its disk, whatever its names.
type Inode struct{ Dev, Ino uint64 }

// File is one name of a file.
type File struct {
	Inode
	Links uint64 // names that it has in all
	Bytes int64  // that it takes of the disk
}

// Walk returns all files and directories at and beneath path, without following
// links or opening a file. What goes meanwhile is left out; nothing there is no
// error.
func Walk(ctx context.Context, path string) ([]File, error) {
	var out []File
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				out = append(out, file(info))
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return out, err
}

func file(info fs.FileInfo) File {
	st := info.Sys().(*syscall.Stat_t) // on Linux it always is
	f := File{Inode: Inode{st.Dev, st.Ino}, Links: uint64(st.Nlink), Bytes: st.Blocks * 512}
	if info.IsDir() {
		f.Links = 1 // the others are its own "." and those of what is in it
	}
	return f
}

// Set counts files once each.
type Set map[Inode]uint64

// Add counts files and returns what those take that had not been counted before,
// and what those take that had.
func (s Set) Add(files []File) (fresh, shared int64) {
	for _, f := range files {
		if s[f.Inode]++; s[f.Inode] == 1 {
			fresh += f.Bytes
		} else {
			shared += f.Bytes
		}
	}
	return fresh, shared
}

// Freed is what would be free if the files went, with all else that s has: a file
// that has a name elsewhere stays. Each file counts for the first that asks.
func (s Set) Freed(files []File) (n int64) {
	for _, f := range files {
		if s[f.Inode] >= f.Links {
			n += f.Bytes
			s[f.Inode] = 0
		}
	}
	return n
}

// Disk tells how large the file system at path is, and what of it the caller may
// still write, in bytes.
func Disk(path string) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	bytes := func(blocks uint64) int64 { return int64(min(blocks, math.MaxInt64/uint64(st.Bsize))) * st.Bsize }
	return bytes(st.Blocks), bytes(st.Bavail), nil
}
