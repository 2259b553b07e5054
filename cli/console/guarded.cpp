#include "cli/console/guarded.h"

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "cli/console/context.h"
#include "engine/base/errors.h"

namespace rehearse::cli {

int complain(int status, const std::string& message) {
  std::cout.flush();
  fmt::print(stderr, "rehearse: {}\n", message);
  return status;
}

int guarded(const std::function<int()>& work) {
  try {
    const int status = work();
    std::cout.flush();
    if (!std::cout) return complain(failed, "standard output: cannot be written");
    return status;
  } catch (const InputError& e) {
    return complain(refused, e.what());
  } catch (const ProgramError& e) {
    return complain(refused, std::string("the program is wrong: ") + e.what());
  } catch (const BackendError& e) {
    return complain(failed, e.what());
  } catch (const std::bad_alloc&) {
    return complain(failed, "out of memory");
  } catch (const std::exception& e) {
    return complain(failed, std::string("internal error: ") + e.what());
  }
}

}  // namespace rehearse::cli
