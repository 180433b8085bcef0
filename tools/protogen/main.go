// Command protogen compiles the .proto files of a directory and has
// protoc-gen-go and protoc-gen-connect-go, at the versions of tools/go.mod,
// write Go for them. It stands in for protoc, which a machine that only has Go
// lacks.
//
//	go run -C tools ./protogen -in ../api/e2b -out ..
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const module = "module=github.com/belljar-sh/belljar"

// plugins with their parameters.
var plugins = [][2]string{{"protoc-gen-go", module}, {"protoc-gen-connect-go", module + ",simple"}}

func main() {
	in := flag.String("in", "", "directory of the .proto files, which import each other from there")
	out := flag.String("out", "", "root of the module that the code is written into")
	flag.Parse()
	if err := run(context.Background(), *in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in, out string) error {
	if in == "" || out == "" {
		return errors.New("-in and -out are needed")
	}
	req, err := compile(ctx, in)
	if err != nil {
		return err
	}
	for _, p := range plugins {
		if err := generate(ctx, req, p[0], p[1], out); err != nil {
			return err
		}
	}
	return nil
}

// compile returns what protoc would send to its plugins.
func compile(ctx context.Context, in string) (*pluginpb.CodeGeneratorRequest, error) {
	var names []string
	err := filepath.WalkDir(in, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(p) != ".proto" {
			return err
		}
		rel, err := filepath.Rel(in, p)
		names = append(names, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	c := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{in}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := c.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: names}
	seen := map[string]bool{}
	for _, f := range files {
		req.ProtoFile = appendFile(req.ProtoFile, f, seen)
	}
	return req, nil
}

// appendFile appends f after all that it imports.
func appendFile(to []*descriptorpb.FileDescriptorProto, f protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return to
	}
	seen[f.Path()] = true
	imports := f.Imports()
	for i := range imports.Len() {
		to = appendFile(to, imports.Get(i).FileDescriptor, seen)
	}
	return append(to, protoutil.ProtoFromFileDescriptor(f))
}

// generate runs one plugin and writes what it answers beneath out.
func generate(ctx context.Context, req *pluginpb.CodeGeneratorRequest, plugin, param, out string) error {
	req.Parameter = proto.String(param)
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", plugin, err)
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return fmt.Errorf("%s: %w", plugin, err)
	}
	if resp.Error != nil {
		return fmt.Errorf("%s: %s", plugin, resp.GetError())
	}
	for _, f := range resp.File {
		p := filepath.Join(out, filepath.FromSlash(f.GetName()))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(strings.TrimRight(f.GetContent(), "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
