// Continue prompts that come in line by line, many at a time, on one thread: standard input and the
// streams' descriptors in one epoll.
//
//   make examples
//   printf 'Once upon a time\nThe little dog\n' | build/worker --ckpt_dir DIR
//
// Each line is answered by a line of JSON, in the order in which they finish:
//   {"line":1,"text":"...","finish":"stop","tokens":12,"queue_ms":0.1,"first_token_ms":3.2,"total_ms":41.5}
//   {"line":2,"error":"...","status":-11}
// Lines are read when there is a slot for them, so a pipe's writer waits rather than this program
// growing. Ctrl-C cancels what runs, and reports it as far as it came.
#include <llamabi.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/epoll.h>
#include <system_error>
#include <unistd.h>

namespace {

constexpr std::size_t longest_line = 1 << 20;

llamabi::Cancel *cancel;
volatile std::sig_atomic_t interrupted;

void on_signal(int) {
  interrupted = 1;
  cancel->trigger(); // may be called from a signal handler
}

std::string quoted(const std::string &text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (json += '\\') += c;
    else if (c == '\n')
      json += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      json += escape;
    } else
      json += c;
  }
  return json += '"';
}

const char *finish_name(std::int32_t reason) {
  switch (reason) {
  case LLAMA_FINISH_STOP:
    return "stop";
  case LLAMA_FINISH_LENGTH:
    return "length";
  case LLAMA_FINISH_STOP_STRING:
    return "stop_string";
  case LLAMA_FINISH_CANCELLED:
    return "cancelled";
  case LLAMA_FINISH_UNREAD:
    return "unread";
  case LLAMA_FINISH_NOT_FINITE:
    return "not_finite";
  default: // what nobody asks for here
    return "other";
  }
}

/// Standard input as lines. Knows when reading would wait, and when it is over.
class Lines {
public:
  /// A whole line is there, or the last one.
  bool ready() const {
    return buffer_.find('\n') != std::string::npos || (ended_ && !buffer_.empty());
  }
  bool ended() const { return ended_ && buffer_.empty(); }

  void read() {
    char chunk[65536];
    const ssize_t n = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
      throw std::system_error(errno, std::generic_category(), "stdin");
    if (n == 0) ended_ = true;
    if (n <= 0) return;
    buffer_.append(chunk, static_cast<std::size_t>(n));
    // Of a line that is too long only so much is kept that take() can tell.
    if (buffer_.size() > 2 * longest_line && !ready()) buffer_.resize(longest_line + 1);
  }

  std::string take() {
    const std::size_t end = std::min(buffer_.find('\n'), buffer_.size());
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }

private:
  std::string buffer_;
  bool ended_ = false;
};

struct Answer {
  llamabi::Stream stream;
  std::string text{};
};

class Worker {
public:
  Worker(const llamabi::Model &model, const llamabi::GenerateOptions &options, std::size_t slots)
      : model_(model), options_(options), slots_(slots), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  }
  ~Worker() { close(epoll_); }
  Worker(const Worker &) = delete;
  Worker &operator=(const Worker &) = delete;

  /// Until the input has ended, or an interrupt, and everything is answered. `unblocked`: the mask
  /// while waiting.
  void run(const sigset_t &unblocked) {
    for (;;) {
      while (!interrupted && answers_.size() < slots_ && lines_.ready()) start(lines_.take());
      const bool wants_input = !interrupted && !lines_.ended() && answers_.size() < slots_;
      if (answers_.empty() && !wants_input) return;
      watch_input(wants_input);
      epoll_event events[64];
      const int n =
          epoll_pwait(epoll_, events, 64, input_is_file_ && wants_input ? 0 : -1, &unblocked);
      if (n < 0 && errno != EINTR)
        throw std::system_error(errno, std::generic_category(), "epoll_pwait");
      for (int i = 0; i < n; i++) {
        if (events[i].data.u64 == input_)
          lines_.read();
        else
          pull(events[i].data.u64);
      }
      if (input_is_file_ && wants_input) lines_.read();
    }
  }

private:
  static constexpr std::uint64_t input_ = 0; // lines count from 1

  /// Files are always readable, and epoll takes none.
  void watch_input(bool wanted) {
    if (wanted == watched_ || input_is_file_) return;
    epoll_event event{EPOLLIN, {}};
    event.data.u64 = input_;
    if (epoll_ctl(epoll_, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, STDIN_FILENO, &event) == 0)
      watched_ = wanted;
    else if (errno == EPERM)
      input_is_file_ = true;
    else
      throw std::system_error(errno, std::generic_category(), "stdin");
  }

  void start(const std::string &prompt) {
    const unsigned long line = ++count_;
    try {
      if (prompt.size() > longest_line)
        throw llamabi::error(LLAMA_E_TOO_LONG, "the line is longer than 1 MiB");
      const auto &answer =
          answers_.emplace(line, Answer{model_.stream(prompt, options_)}).first->second;
      epoll_event event{EPOLLIN, {}};
      event.data.u64 = line;
      if (epoll_ctl(epoll_, EPOLL_CTL_ADD, answer.stream.fd(), &event) != 0)
        throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    } catch (const llamabi::error &e) {
      refuse(line, e);
    }
  }

  /// Takes the events that are there; never waits.
  void pull(std::uint64_t line) {
    Answer &a = answers_.at(line);
    try {
      llama_status status;
      while ((status = a.stream.next(event_, std::chrono::milliseconds(0))) == LLAMA_OK) {
        a.text += event_.text;
        if (event_.kind == LLAMA_EVENT_FINISH) report(line, a);
      }
      if (status == LLAMA_TIMEOUT) return;
    } catch (const llamabi::error &e) {
      refuse(line, e);
    }
    epoll_ctl(epoll_, EPOLL_CTL_DEL, a.stream.fd(), nullptr);
    answers_.erase(line);
  }

  void report(unsigned long line, const Answer &a) const {
    const llamabi::Stats stats = a.stream.stats();
    std::printf(
        "{\"line\":%lu,\"text\":%s,\"finish\":\"%s\",\"tokens\":%u,\"queue_ms\":%.1f,\"first_token_ms\":%.1f,"
        "\"total_ms\":%.1f}\n",
        line, quoted(a.text).c_str(), finish_name(event_.finish_reason), stats.generated_tokens,
        stats.queue_ms, stats.first_token_ms, stats.total_ms);
    flush();
  }

  static void refuse(unsigned long line, const llamabi::error &e) {
    std::printf(
        "{\"line\":%lu,\"error\":%s,\"status\":%d}\n", line, quoted(e.what()).c_str(), e.status());
    flush();
  }

  static void flush() {
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category(), "stdout");
  }

  const llamabi::Model &model_;
  const llamabi::GenerateOptions &options_;
  const std::size_t slots_;
  const int epoll_;
  Lines lines_;
  std::map<std::uint64_t, Answer> answers_;
  llamabi::Event event_;
  unsigned long count_ = 0;
  bool watched_ = false, input_is_file_ = false;
};

int usage() {
  std::fputs("usage: worker --ckpt_dir DIR [--slots 8] [--max_gen_len N] [--max_seq_len 512]\n"
             "              [--temperature 0.6] [--seed 0] [--ignore_eos 0]\n",
      stderr);
  return 2;
}

} // namespace

int main(int argc, char **argv) try {
  llamabi::Cancel stop;
  cancel = &stop;
  llamabi::Options build;
  llamabi::GenerateOptions options;
  build.cancel = options.cancel = stop;
  std::string ckpt_dir;
  if (argc % 2 == 0) return usage();
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--ckpt_dir")
      ckpt_dir = value;
    else if (name == "--slots")
      build.max_batch_size = static_cast<std::uint32_t>(std::stoul(value));
    else if (name == "--max_gen_len")
      options.max_gen_len = static_cast<std::uint32_t>(std::stoul(value));
    else if (name == "--max_seq_len")
      build.max_seq_len = static_cast<std::uint32_t>(std::stoul(value));
    else if (name == "--temperature")
      options.temperature = std::stof(value);
    else if (name == "--ignore_eos")
      options.ignore_eos = value != "0";
    else if (name == "--seed")
      options.seed = std::stoull(value);
    else
      return usage();
  }
  if (ckpt_dir.empty()) return usage();

  struct sigaction action{};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const llamabi::Model model(ckpt_dir, build);

  // From here on signals come only while epoll waits, so none is lost just before.
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  Worker(model, options, build.max_batch_size).run(before);
  return interrupted ? 130 : 0;
} catch (const llamabi::error &e) {
  std::fprintf(stderr, "worker: %s\n", e.what());
  return e.status() == LLAMA_CANCELLED ? 130 : 1;
} catch (const std::logic_error &) { // what std::sto* throw
  return usage();
} catch (const std::exception &e) {
  std::fprintf(stderr, "worker: %s\n", e.what());
  return 1;
}
