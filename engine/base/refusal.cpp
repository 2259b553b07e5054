#include "engine/base/refusal.h"

namespace rehearse {

void refuse(const std::string& key, const std::string& value, const std::string& why) {
  const std::string name = "method." + key;
  throw Refused({name, name + ": " + value + ": " + why});
}

}  // namespace rehearse
