#include "data/text_corpus.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.hpp"
#include "data/indexed_dataset.hpp"

namespace weft {
namespace {

// A unit of work: enough documents to make waking a thread worth while.
constexpr std::size_t kJobBytes = std::size_t{1} << 19;
constexpr std::size_t kJobDocuments = 4096;

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

struct Job {
  const DocumentReader* reader = nullptr;
  std::vector<RawDocument> raw;
  std::vector<std::int32_t> tokens;  // of all its documents
  std::vector<std::size_t> lengths;  // of each
  std::int64_t text_bytes = 0;
  std::exception_ptr error;
  bool done = false;
};

void tokenize(Job& job, Encoder& encoder, std::optional<std::int32_t> eod) {
  for (RawDocument& raw : job.raw) {
    const std::string text = job.reader->text_of(std::move(raw));
    const std::size_t before = job.tokens.size();
    encoder.encode(text, job.tokens);
    if (eod && !text.empty()) job.tokens.push_back(*eod);
    job.lengths.push_back(job.tokens.size() - before);
    job.text_bytes += static_cast<std::int64_t>(text.size());
  }
  job.raw.clear();
}

// Threads that tokenize jobs in any order.
class Tokenizers {
 public:
  Tokenizers(const Tokenizer& tokenizer, std::optional<std::int32_t> eod, int workers) {
    try {
      for (int i = 0; i < workers; ++i)
        threads_.emplace_back([this, &tokenizer, eod] { work(tokenizer, eod); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Tokenizers() { stop(); }
  Tokenizers(const Tokenizers&) = delete;
  Tokenizers& operator=(const Tokenizers&) = delete;

  // The job must stay where it is until wait() returned.
  void submit(Job& job) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(&job);
    change_.notify_all();
  }
  void wait(const Job& job) {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return job.done; });
  }

 private:
  void work(const Tokenizer& tokenizer, std::optional<std::int32_t> eod) {
    Encoder encoder(tokenizer);
    std::unique_lock lock(mutex_);
    while (true) {
      change_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      Job& job = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        tokenize(job, encoder, eod);
      } catch (...) {
        job.error = std::current_exception();
      }
      lock.lock();
      job.done = true;
      change_.notify_all();
    }
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      change_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::mutex mutex_;
  std::condition_variable change_;
  std::deque<Job*> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// The next documents of the inputs, in order; false at the end of the last.
class JobReader {
 public:
  explicit JobReader(std::span<const std::filesystem::path> inputs) {
    // All are opened at once, so that a missing one is reported before any work.
    for (const auto& input : inputs) readers_.emplace_back(input);
  }
  bool fill(Job& job) {
    while (current_ < readers_.size()) {
      job.reader = &readers_[current_];
      std::size_t bytes = 0;
      for (RawDocument raw; bytes < kJobBytes && job.raw.size() < kJobDocuments;) {
        if (!readers_[current_].next(raw)) {
          ++current_;
          break;
        }
        bytes += raw.bytes.size();
        job.raw.push_back(std::move(raw));
      }
      if (!job.raw.empty()) return true;
    }
    return false;
  }

 private:
  std::deque<DocumentReader> readers_;
  std::size_t current_ = 0;
};

using Sink = std::function<void(std::span<const std::int32_t>)>;

// Calls `sink` with the tokens of every document, in order.
BuildReport run(std::span<const std::filesystem::path> inputs, const Tokenizer& tokenizer,
                const BuildOptions& options, const Sink& sink) {
  if (inputs.empty()) config_fail("--input: no text file was named");
  if (options.workers < 1) config_fail("--workers {}: at least 1", options.workers);
  std::optional<std::int32_t> eod;
  if (options.append_eod) {
    eod = tokenizer.end_of_document();
    if (!eod)
      config_fail("--append-eod: the tokenizer has no end-of-document token (<|endoftext|> or the like)");
  }
  JobReader reader(inputs);
  BuildReport report;
  std::deque<Job>
      jobs;  // declared before the threads, which still may hold one when an error ends this function
  const auto finish = [&](Job& job) {
    if (job.error) std::rethrow_exception(job.error);
    std::span<const std::int32_t> rest(job.tokens);
    for (const std::size_t length : job.lengths) {
      sink(rest.first(length));
      rest = rest.subspan(length);
    }
    report.documents += std::ssize(job.lengths);
    report.tokens += std::ssize(job.tokens);
    report.text_bytes += job.text_bytes;
  };
  Tokenizers tokenizers(tokenizer, eod, options.workers);
  const std::size_t most = 2 * static_cast<std::size_t>(options.workers) + 1;
  for (bool more = true; more || !jobs.empty();) {
    if (more && jobs.size() < most) {
      jobs.emplace_back();
      more = reader.fill(jobs.back());
      if (more) {
        tokenizers.submit(jobs.back());
      } else {
        jobs.pop_back();
      }
      continue;
    }
    tokenizers.wait(jobs.front());
    finish(jobs.front());
    jobs.pop_front();
  }
  return report;
}

}  // namespace

bool is_jsonl(const std::filesystem::path& path) {
  return path.extension() == ".jsonl";
}

DocumentReader::DocumentReader(const std::filesystem::path& path) : file_(path), jsonl_(is_jsonl(path)) {}

bool DocumentReader::next(RawDocument& out) {
  out.bytes.clear();
  while (file_.line(buffer_)) {
    ++line_;
    if (blank(buffer_)) {
      if (!out.bytes.empty()) break;
      continue;
    }
    if (out.bytes.empty()) out.line = line_;
    out.bytes += buffer_;
    if (jsonl_) break;
  }
  if (out.bytes.empty()) return false;
  if (out.bytes.back() == '\n') out.bytes.pop_back();
  if (!out.bytes.empty() && out.bytes.back() == '\r') out.bytes.pop_back();
  return true;
}

std::string DocumentReader::text_of(RawDocument raw) const {
  if (!jsonl_) return std::move(raw.bytes);
  const std::string where = fmt::format("{} line {}", file_.path().string(), raw.line);
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(raw.bytes);
  } catch (const nlohmann::json::exception& error) {
    config_fail("{}: no valid JSON: {}", where, error.what());
  }
  if (!object.is_object()) config_fail("{}: expected a JSON object", where);
  const auto text = object.find("text");
  if (text == object.end()) config_fail("{}: the object has no \"text\"", where);
  if (!text->is_string()) config_fail("{}: \"text\" is no string", where);
  return std::move(text->get_ref<std::string&>());
}

BuildReport build_dataset(std::span<const std::filesystem::path> inputs, const Tokenizer& tokenizer,
                          const std::filesystem::path& out_prefix, const BuildOptions& options) {
  IndexedDatasetWriter writer(out_prefix, tokenizer.vocab_size());
  const BuildReport report = run(inputs, tokenizer, options, [&](std::span<const std::int32_t> document) {
    writer.add_document(document);
  });
  writer.commit();
  return report;
}

MemoryTokens tokenize_files(std::span<const std::filesystem::path> inputs, const Tokenizer& tokenizer,
                            const BuildOptions& options) {
  std::vector<std::int32_t> tokens, lengths;
  run(inputs, tokenizer, options, [&](std::span<const std::int32_t> document) {
    if (document.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      fail("a document of {} tokens; at most {} are possible", document.size(),
           std::numeric_limits<std::int32_t>::max());
    tokens.insert(tokens.end(), document.begin(), document.end());
    lengths.push_back(static_cast<std::int32_t>(document.size()));
  });
  std::string name = inputs.front().string();
  if (inputs.size() > 1) name += fmt::format(" and {} more", inputs.size() - 1);
  return MemoryTokens(std::move(tokens), std::move(lengths), name);
}

}  // namespace weft
