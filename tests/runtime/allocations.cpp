#include "tests/runtime/allocations.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REHEARSE_COUNTS_ALLOCATIONS 0
#else
#define REHEARSE_COUNTS_ALLOCATIONS 1
#endif

namespace rehearse::runtime {
namespace {

constexpr std::size_t stacks_kept = 4, depth = 10;
struct Stack {
  std::array<void*, depth> frames = {};
  int size = 0;
};

std::atomic<bool> counting = false;
std::atomic<std::int64_t> count = 0;
std::vector<pid_t> older_threads;  // constant while counting
std::mutex lock;
std::array<Stack, stacks_kept> stacks;
thread_local bool here = false;  // this thread is in `note`

/// Where the code of the program and of the standard library lies.
std::vector<std::pair<std::uintptr_t, std::uintptr_t>> own_code() {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* to) {
        // The program is the object without a name.
        if (*object->dlpi_name != '\0' && std::strstr(object->dlpi_name, "libstdc++") == nullptr)
          return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& part = object->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
          const std::uintptr_t begin = object->dlpi_addr + part.p_vaddr;
          static_cast<decltype(ranges)*>(to)->emplace_back(begin, begin + part.p_memsz);
        }
        return 0;
      },
      &ranges);
  return ranges;
}

bool own(const void* caller) {
  static const auto ranges = own_code();
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  return std::ranges::any_of(
      ranges, [&](const auto& range) { return range.first <= at && at < range.second; });
}

/// Whether the code is of std::string. Of its functions all libraries call the one copy that the
/// program has.
bool of_string(const void* code) {
  Dl_info info;
  return dladdr(code, &info) != 0 && info.dli_sname != nullptr &&
         std::string_view(info.dli_sname).starts_with("_ZNSt7__cxx1112basic_string");
}

/// Whether the program itself took memory: `caller`, or who called the function of a string that
/// `caller` is in.
bool own_call(const void* caller, const Stack& stack) {
  if (!own(caller)) return false;
  const auto end = stack.frames.begin() + stack.size;
  auto frame = std::find(stack.frames.begin(), end, caller);
  while (frame != end && of_string(*frame)) ++frame;
  return frame == end || own(*frame);
}

[[gnu::noinline]] void note(const void* caller) {
  if (!counting.load(std::memory_order_acquire) || here) return;
  here = true;
  if (own(caller) && std::ranges::find(older_threads, gettid()) == older_threads.end()) {
    Stack stack;
    stack.size = backtrace(stack.frames.data(), depth);
    if (own_call(caller, stack)) {
      const std::lock_guard guard(lock);
      stacks[static_cast<std::size_t>(count.fetch_add(1)) % stacks_kept] = stack;
    }
  }
  here = false;
}

}  // namespace

bool AllocationCounter::works() { return REHEARSE_COUNTS_ALLOCATIONS != 0; }

AllocationCounter::AllocationCounter() {
  older_threads.clear();
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    if (const pid_t thread = std::stoi(task.path().filename().string()); thread != gettid())
      older_threads.push_back(thread);
  Stack first;
  first.size = backtrace(first.frames.data(), depth);  // loads what it needs
  stacks.fill(Stack());
  count = 0;
  counting.store(true, std::memory_order_release);
}

AllocationCounter::~AllocationCounter() { counting = false; }

std::int64_t AllocationCounter::made() const { return count; }

std::string AllocationCounter::latest() {
  counting = false;  // this allocates, too
  const std::lock_guard guard(lock);
  std::string text;
  for (Stack& stack : stacks) {
    if (stack.size == 0) continue;
    const std::unique_ptr<char*, decltype(&std::free)> names(
        backtrace_symbols(stack.frames.data(), stack.size), &std::free);
    for (int i = 2; i < stack.size; ++i) text += fmt::format("  {}\n", names.get()[i]);
    text += '\n';
  }
  return text;
}

#if REHEARSE_COUNTS_ALLOCATIONS
namespace {

void* taken(std::size_t bytes, std::size_t alignment, const void* caller) {
  note(caller);
  const std::size_t least = std::max<std::size_t>(bytes, 1);
  void* const memory =
      alignment == 0
          ? std::malloc(least)
          : std::aligned_alloc(alignment, (least + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
#endif

}  // namespace rehearse::runtime

#if REHEARSE_COUNTS_ALLOCATIONS
using rehearse::runtime::taken;

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return taken(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return taken(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return taken(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return taken(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif
