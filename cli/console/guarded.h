// Errors as exit statuses, for this process and for each rank that it starts.
#pragma once
#include <functional>
#include <string>

namespace rehearse::cli {

/// Prints the error message and returns `status`.
int complain(int status, const std::string& message);

/// Runs `work` and returns its exit status. An error is printed as one message and gives the status
/// of its kind (cli/console/context.h).
int guarded(const std::function<int()>& work);

}  // namespace rehearse::cli
