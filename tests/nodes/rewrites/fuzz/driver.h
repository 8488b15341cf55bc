// Runs the texts of one batch, each in a process of its own, on tensors in a file that all of them share.
//
// The arguments: the file, then for each run `text rows n backwards multiprocessors place...`, the places of its tensors in the
// file in bytes, with a "," behind. What became of a text is printed as `text status`, the status 0, 128 + signal, or its exit code.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace driver {

struct Text {
  int number;
  void (*run)(void** tensors, int64_t rows, int64_t n);
};

constexpr int kSeconds = 8;  // of the processor's time, for all runs of a text

struct Run {
  int text = 0;
  int64_t rows = 0, n = 0;
  bool backwards = false;
  const char* multiprocessors = "132";
  std::vector<void*> tensors;
};

inline std::vector<Run> parsed(char** word, char* memory) {
  std::vector<Run> runs;
  while (*word != nullptr) {
    Run run;
    run.text = std::atoi(*word++);
    run.rows = std::atoll(*word++);
    run.n = std::atoll(*word++);
    run.backwards = **word++ == '1';
    run.multiprocessors = *word++;
    for (; std::strcmp(*word, ",") != 0; ++word) run.tensors.push_back(memory + std::atoll(*word));
    ++word;
    runs.push_back(run);
  }
  return runs;
}

template <typename Prepare>
int main(char** words, const std::vector<Text>& texts, Prepare prepare) {
  const int file = open(words[1], O_RDWR);
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) return 1;
  void* memory = mmap(nullptr, about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return 1;
  const std::vector<Run> runs = parsed(words + 2, static_cast<char*>(memory));
  for (const Text& text : texts) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit = {kSeconds, kSeconds + 1};
      setrlimit(RLIMIT_CPU, &limit);
      for (const Run& run : runs) {
        if (run.text != text.number) continue;
        prepare(run);
        auto tensors = run.tensors;
        text.run(tensors.data(), run.rows, run.n);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%d %d\n", text.number, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace driver
