// The secret of a run: where it comes from, and that it is kept. The addresses that ranks listen
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "engine/base/errors.h"
#include "runtime/control/control.h"
#include "runtime/control/launch/environment.h"
#include "runtime/control/net/interfaces.h"
#include "runtime/control/net/secret.h"
#include "tests/message_of.h"
#include "tests/runtime/comm_ranks.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {
namespace {

using test::message_of;

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(CommSecret, IsReadAsItWasWritten) {
  const Secret secret = random_secret();
  EXPECT_NE(secret, random_secret());
  EXPECT_EQ(secret_from(to_hex(secret)), secret);
  EXPECT_EQ(secret_from(to_hex(secret) + "\n"), secret);
  for (const std::string& wrong :
       {std::string(), std::string(64, 'g'), std::string(63, 'a'), std::string(66, 'a')})
    EXPECT_FALSE(secret_from(wrong)) << wrong;
}

TEST(CommSecret, TheVariableIsCheckedAndNotShown) {
  const auto with = [](const std::string& value) {
    return secret_of([&](const std::string&) { return std::optional(value); });
  };
  EXPECT_EQ(with(std::string(64, '0')), Secret{});
  EXPECT_THAT(message_of<InputError>([&] { with("my password"); }),
              AllOf(HasSubstr("REHEARSE_SECRET"), HasSubstr("64 hexadecimal digits"),
                    HasSubstr("openssl rand -hex 32"), Not(HasSubstr("password"))));
}

TEST(CommSecret, TheFileIsMadeOnceAndForItsUserAlone) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/secret";
  const Secret made = secret_in(path, true, Seconds(60));
  EXPECT_EQ(secret_in(path, true, Seconds(60)), made);
  EXPECT_EQ(secret_in(path, false, Seconds(60)), made);
  struct stat about = {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600U);
  const auto files = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "something is left over";

  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_THAT(message_of<InputError>([&] { secret_in(path, true, Seconds(60)); }),
              AllOf(HasSubstr(path), HasSubstr("chmod 600")));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::ofstream(path) << "no secret\n";
  EXPECT_THAT(message_of<InputError>([&] { secret_in(path, true, Seconds(60)); }),
              AllOf(HasSubstr(path), HasSubstr("64 hexadecimal digits")));
  EXPECT_THAT(message_of<BackendError>([&] { secret_in(path + "s", false, Seconds(0)); }),
              HasSubstr("on a file system that all hosts share"));
}

TEST(CommSecret, SeveralHostsNeedOne) {
  Environment environment;
  environment.world_size = 2;  // one rank on each host
  environment.rank = 1;
  EXPECT_THAT(message_of<InputError>([&] { const Control control(environment, patient()); }),
              AllOf(HasSubstr("run.secret_file"), HasSubstr("REHEARSE_SECRET"),
                    HasSubstr("run.trust_network = true")));
}

TEST(CommAddress, TheUserMayStateTheInterface) {
  for (const std::string stated : {"lo", "127.0.0.1", "127.0.0.0/8"})
    EXPECT_EQ(address_for_other_hosts(stated), "127.0.0.1") << stated;
  EXPECT_EQ(address_for_other_hosts("", "localhost"), "127.0.0.1");
  for (const std::string wrong : {"eth77", "203.0.113.0/24", "127.0.0.0/x", "127.0.0.0/33", "/"})
    EXPECT_THAT(message_of<InputError>([&] { address_for_other_hosts(wrong); }),
                AllOf(HasSubstr("run.interface: \"" + wrong), HasSubstr("lo (127.0.0.1)")));
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_FALSE(is_this_host("203.0.113.1"));
}

}  // namespace
}  // namespace rehearse::runtime
