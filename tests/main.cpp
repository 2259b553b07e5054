// The main function of the C++ test programs.
//
// ctest runs several tests of one program at the same time, each in a process of its own. So each
// process gets a folder of its own as testing::TempDir(), and tests may choose any file name in it.

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace {

class OwnFolder {
 public:
  OwnFolder() {
    path_ = (std::filesystem::temp_directory_path() / "rehearse_test_XXXXXX").string();
    if (!mkdtemp(path_.data()))
      throw std::system_error(errno, std::generic_category(), "cannot make " + path_);
    setenv("TEST_TMPDIR", path_.c_str(), 1);
  }
  ~OwnFolder() {
    std::error_code ignored;  // A folder that stays does no harm.
    std::filesystem::remove_all(path_, ignored);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

 private:
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  int status = 1;
  {
    const OwnFolder folder;
    testing::InitGoogleMock(&argc, argv);
    status = RUN_ALL_TESTS();
  }
  // Without the destructors of LibTorch's global objects, which take 70 ms in each process.
  std::fflush(nullptr);
  _exit(status);
}
