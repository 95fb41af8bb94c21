package llamabi_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"llamabi"
)

// child runs this test again in a process whose loader looks for the library in dir only.
func child(t *testing.T, dir string) (output string, err error) {
	t.Helper()
	cmd := exec.Command(must(os.Executable())(t), "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "LLAMABI_TEST_CHILD=1", "LD_LIBRARY_PATH="+dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func isChild() bool { return os.Getenv("LLAMABI_TEST_CHILD") != "" }

func TestOtherABI(t *testing.T) {
	if isChild() {
		_, err := llamabi.Open(context.Background(), demo)
		wantError(t, err, llamabi.ErrABI, "99.0.0", "ABI version 99", "ABI version 0")
		fmt.Println("refused:", err)
		return
	}
	behaviour(t, "other_abi")
	dir := t.TempDir()
	if out, err := exec.Command("../../tests/bindings/other_abi.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := child(t, dir); err != nil || !strings.Contains(out, "refused:") {
		t.Errorf("%v: %s", err, out)
	}
}

// The system's loader refuses to start the program; README.md quotes it and says what to do.
func TestMissingLibrary(t *testing.T) {
	if isChild() {
		return // It was started all the same; the parent sees that.
	}
	behaviour(t, "missing_library")
	const sentence = "error while loading shared libraries: libllamabi.so.0: cannot open shared object file"
	out, err := child(t, t.TempDir())
	if err == nil {
		t.Skip("libllamabi is installed where the system's loader looks: it cannot be missing here")
	}
	if !strings.Contains(out, sentence) {
		t.Errorf("the loader says: %s", out)
	}
	readme := string(must(os.ReadFile("README.md"))(t))
	for _, documented := range []string{sentence, "LD_LIBRARY_PATH"} {
		if !strings.Contains(readme, documented) {
			t.Errorf("README.md does not say %q", documented)
		}
	}
}
