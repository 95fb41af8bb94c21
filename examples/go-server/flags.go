package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"llamabi"
)

// settings are what the command line says.
type settings struct {
	ckptDir, tokenizer, name string
	chatTemplate             string
	adapters                 []adapter
	draftDir                 string
	draftDtype               llamabi.Dtype
	medusaDir                string
	maxSeqLen, maxBatchSize  int
	device                   llamabi.Device
	deviceIndex              int
	threads                  int
	weightsDtype, kvDtype    llamabi.Dtype
	precision                llamabi.Precision
	ranks                    []int
	seed                     uint64
	queue, maxWaiting        int
	gpuMemory, stallMemory   uint64
	maxStep                  time.Duration
	maxStall, maxUnread      time.Duration
	maxBody                  uint64
	maxAnswer                int
	timeout, drain, grace    time.Duration
	host                     string
	port                     int
	access                   access
	cachedTokens             bool
	accessLog                string
}

func readFlags() (settings, error) {
	s := settings{maxBody: 1 << 20, timeout: 10 * time.Minute, grace: 30 * time.Second}
	keyFile := ""
	flag.StringVar(&s.ckptDir, "ckpt_dir", "", "directory of the checkpoint, or its .gguf file (required)")
	flag.StringVar(&s.tokenizer, "tokenizer_path", "", "file of a tokenizer, instead of the checkpoint's own")
	flag.Func("chat_template", "`file` of a Jinja template for chats, instead of the checkpoint's own", s.readTemplate)
	flag.StringVar(&s.name, "model_name", "", "the model's name, as requests give it and /v1/models (default: the last part of --ckpt_dir)")
	flag.Func("adapter", "LoRA adapter in a directory, as `NAME=DIR`, which requests choose by NAME as their model; repeatable", s.addAdapter)
	flag.StringVar(&s.draftDir, "draft_dir", "", "directory of a draft model, or its .gguf file: smaller, with the same tokens, it guesses at them (same answers, sooner)")
	flag.Func("draft_weights_dtype", "convert the draft model's weights to `dtype` (default auto)", setDtype(&s.draftDtype))
	flag.StringVar(&s.medusaDir, "medusa_dir", "", "directory of Medusa heads trained for the checkpoint, which guess at tokens (same answers, sooner)")
	flag.IntVar(&s.maxSeqLen, "max_seq_len", 512, "most tokens of a sequence, prompt included")
	flag.IntVar(&s.maxBatchSize, "max_batch_size", 8, "sequences that run at the same time")
	flag.Func("device", "auto, cpu, cuda or cuda:N (default auto)", s.setDevice)
	flag.Func("gpu_memory", "most `bytes` of GPU memory, as 20G (0: as many as are free)", setBytes(&s.gpuMemory))
	flag.Func("ranks", "NUMA `nodes`, as 0,1 (with a device of cuda: GPUs): each gets a rank with its share of the model (default: one rank)", s.setRanks)
	flag.IntVar(&s.threads, "threads", 0, "threads of the CPU backend, of each rank (0: all)")
	flag.Func("weights_dtype", "convert the weights to `dtype`: auto, f32, f16, bf16, int8, int4, nf4, fp8 (default auto)", setDtype(&s.weightsDtype))
	flag.Func("kv_dtype", "`dtype` of the KV cache (default auto)", setDtype(&s.kvDtype))
	flag.Func("precision", "how exactly the CPU multiplies: full, fast (for many sequences) or auto (default auto)", s.setPrecision)
	flag.Uint64Var(&s.seed, "seed", 0, "of requests without one, in turn (0: random)")
	flag.IntVar(&s.queue, "queue", 64, "sequences that may wait; while so many do, requests are answered 429")
	flag.IntVar(&s.maxWaiting, "max_waiting", 0, "calls that may wait for slots in the model; more are answered 429 (0: as many as --queue lets in)")
	flag.Func("max_step", "`seconds` that a step should take at most that computes a part of a prompt beside running answers (0: 0.1)", setSeconds(&s.maxStep))
	flag.Func("max_stall", "`seconds` that an answer whose reader is behind keeps its slot while others wait (0: 1)", setSeconds(&s.maxStall))
	flag.Func("max_unread", "`seconds` after which an answer that nobody reads ends, or never (0: 60)", setSecondsOrNever(&s.maxUnread))
	flag.Func("stall_memory", "most `bytes` of memory for answers that have lost their slots so (0: as many as the KV cache has)", setBytes(&s.stallMemory))
	flag.Func("max_body", "most `bytes` of a request (default 1M)", setBytes(&s.maxBody))
	flag.IntVar(&s.maxAnswer, "max_answer", 1<<20, "most tokens of an answer that is sent as a whole, of all its sequences and with their alternatives")
	flag.Func("timeout", "`seconds` that a request may take in all, waiting and sending included (0: no limit; default 600)", setSeconds(&s.timeout))
	flag.StringVar(&s.host, "host", "127.0.0.1", "address to listen on")
	flag.IntVar(&s.port, "port", 8080, "port to listen on (0: any)")
	flag.Func("allowed_host", "further `name` by which requests may call this host, for a loopback address; repeatable", s.access.addHost)
	flag.Func("api_key", "`key` that requests must bring; repeatable, or several with commas", s.access.addKeys)
	flag.StringVar(&keyFile, "api_key_file", "", "file with such keys, one on a line; lines that begin with # are comments")
	flag.Func("cors", "`origin` whose pages may call from a browser, * for all; repeatable", s.access.addOrigin)
	flag.BoolVar(&s.cachedTokens, "cached_tokens", false, "report in an answer's usage how many prompt tokens came from the prefix cache")
	flag.Func("cache_scope", "who finds whose cached prefixes: a `request` its own, those of one API key, all (request, key, all; default key)", s.access.setScope)
	flag.StringVar(&s.accessLog, "access_log", "-", "file that gets a line of JSON for each request (-: standard output; none: nowhere)")
	flag.Func("drain", "`seconds` for which requests are taken after SIGTERM, while /readyz sends them elsewhere (default 0)", setSeconds(&s.drain))
	flag.Func("grace", "`seconds` that running requests have after SIGTERM (default 30)", setSeconds(&s.grace))
	usage := flag.Usage
	flag.Usage = func() {
		usage()
		fmt.Fprintln(flag.CommandLine.Output(), "A dash may stand for each underscore.")
	}
	flag.CommandLine.Parse(underscored(os.Args[1:])) // ends the process where it fails
	if s.ckptDir == "" || flag.NArg() > 0 {
		flag.Usage()
		return s, errors.New("--ckpt_dir is missing, or there are arguments that are no flags")
	}
	if s.maxWaiting == 0 {
		s.maxWaiting = max(s.maxBatchSize+s.queue, 1)
	}
	if keyFile != "" {
		return s, s.access.readKeys(keyFile)
	}
	return s, nil
}

// readTemplate takes the text of a chat template from its file.
func (s *settings) readTemplate(file string) error {
	text, err := os.ReadFile(file)
	if err == nil && len(text) == 0 {
		err = errors.New("the file is empty")
	}
	s.chatTemplate = string(text)
	return err
}

// underscored has an underscore for each dash in a flag's name.
func underscored(args []string) []string {
	var all []string
	for _, arg := range args {
		if name, found := strings.CutPrefix(arg, "--"); found {
			name, value, isThere := strings.Cut(name, "=")
			arg = "--" + strings.ReplaceAll(name, "-", "_")
			if isThere {
				arg += "=" + value
			}
		}
		all = append(all, arg)
	}
	return all
}

// setDtype parses a flag that is the name of a dtype.
func setDtype(d *llamabi.Dtype) func(string) error {
	return func(name string) error {
		dtypes := map[string]llamabi.Dtype{"auto": llamabi.DtypeAuto, "f32": llamabi.DtypeF32, "f16": llamabi.DtypeF16,
			"bf16": llamabi.DtypeBF16, "int8": llamabi.DtypeInt8, "int4": llamabi.DtypeInt4, "nf4": llamabi.DtypeNF4,
			"fp8": llamabi.DtypeFP8}
		var known bool
		if *d, known = dtypes[name]; !known {
			return errors.New("must be auto, f32, f16, bf16, int8, int4, nf4 or fp8")
		}
		return nil
	}
}

// The most ranks, as llamabi.h says of n_devices.
const maxRanks = 64

func (s *settings) setRanks(list string) error {
	s.ranks = nil
	for _, given := range strings.Split(list, ",") {
		node, err := strconv.ParseUint(given, 10, 15)
		if err != nil || len(s.ranks) == maxRanks {
			return fmt.Errorf("must be numbers with commas between them, at most %d", maxRanks)
		}
		s.ranks = append(s.ranks, int(node))
	}
	return nil
}

func (s *settings) setPrecision(name string) error {
	precisions := map[string]llamabi.Precision{"auto": llamabi.PrecisionAuto, "full": llamabi.PrecisionFull, "fast": llamabi.PrecisionFast}
	var known bool
	if s.precision, known = precisions[name]; !known {
		return errors.New("must be auto, full or fast")
	}
	return nil
}

var deviceForm = regexp.MustCompile(`^(?:(auto|cpu|cuda)|cuda:(\d{1,4}))$`)

func (s *settings) setDevice(given string) error {
	match := deviceForm.FindStringSubmatch(given)
	if match == nil {
		return errors.New("must be auto, cpu, cuda or cuda:N")
	}
	devices := map[string]llamabi.Device{"auto": llamabi.DeviceAuto, "cpu": llamabi.DeviceCPU, "cuda": llamabi.DeviceCUDA, "": llamabi.DeviceCUDA}
	s.device = devices[match[1]]
	s.deviceIndex, _ = strconv.Atoi(match[2]) // four digits, or none: 0
	return nil
}

var secondsForm = regexp.MustCompile(`^\d+(\.\d+)?(ms|s|m|h)?$`)

// setSeconds parses a flag of seconds, or with another unit.
func setSeconds(d *time.Duration) func(string) error {
	return func(given string) error {
		match := secondsForm.FindStringSubmatch(given)
		if match != nil && match[2] == "" {
			given += "s"
		}
		value, err := time.ParseDuration(given)
		if match == nil || err != nil || value > 1<<21*time.Second {
			return errors.New("must be seconds, or a number with ms, s, m or h, of at most 2^21 s")
		}
		*d = value
		return nil
	}
}

func setSecondsOrNever(d *time.Duration) func(string) error {
	return func(given string) error {
		if given == "never" {
			*d = llamabi.Never
			return nil
		}
		if err := setSeconds(d)(given); err != nil {
			return errors.New("must be never, or" + strings.TrimPrefix(err.Error(), "must be"))
		}
		return nil
	}
}

var bytesForm = regexp.MustCompile(`^(\d+)([KMG]?)(?:iB|B)?$`)

// setBytes parses a flag of bytes, perhaps with a unit.
func setBytes(n *uint64) func(string) error {
	return func(given string) error {
		expected := errors.New("must be bytes, or a number with K, M or G (powers of 1024)")
		match := bytesForm.FindStringSubmatch(given)
		if match == nil {
			return expected
		}
		shift := map[string]uint{"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
		value, err := strconv.ParseUint(match[1], 10, 64)
		if err != nil || value > (1<<53-1)>>shift {
			return expected
		}
		*n = value << shift
		return nil
	}
}
