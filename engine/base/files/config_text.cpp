// Parts of a TOML file as TOML text, for readers that hand them on to the reader of another file.
#include <sstream>

#include "engine/base/files/config.h"
#include "engine/base/files/config_source.h"

namespace rehearse {
namespace {

std::string quoted(const toml::key& key) {
  std::ostringstream out;
  out << toml::toml_formatter(toml::value<std::string>(key.str()), toml::format_flags::none);
  return out.str();
}

/// On one line.
std::string text_of(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) {
    constexpr auto flags = toml::format_flags::none;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, toml::array>) {
      out << "[";
      for (std::size_t i = 0; i < value.size(); ++i)
        out << (i == 0 ? "" : ", ") << text_of(*value.get(i));
      out << "]";
    } else if constexpr (std::is_same_v<Value, toml::table>) {
      out << "{ ";
      bool first = true;
      for (const auto& [key, inner] : value) {
        out << (first ? "" : ", ") << quoted(key) << " = " << text_of(inner);
        first = false;
      }
      out << " }";
    } else {
      out << toml::toml_formatter(value, flags);
    }
  });
  return out.str();
}

void add_leaves(const toml::table& table, const std::string& path, std::vector<Config::Leaf>& out) {
  for (const auto& [key, node] : table) {
    const std::string here = join(path, key.str());
    if (const toml::table* inner = node.as_table())
      add_leaves(*inner, here, out);
    else
      out.push_back({here, text_of(node)});
  }
}

}  // namespace

Config::Shape Config::shape(const std::string& key) const {
  const toml::node* node = find(source_->root, full(key));
  if (node == nullptr) return Shape::absent;
  if (node->is_table()) return Shape::table;
  const toml::array* array = node->as_array();
  if (array == nullptr) return Shape::value;
  const bool tables = !array->empty() && array->is_homogeneous(toml::node_type::table);
  return tables ? Shape::table_list : Shape::list;
}

std::vector<std::string> Config::elements(const std::string& key) const {
  ask(key, "list", "");
  const toml::node* node = find(source_->root, full(key));
  std::vector<std::string> out;
  if (const toml::array* array = node == nullptr ? nullptr : node->as_array())
    for (const toml::node& element : *array) out.push_back(text_of(element));
  return out;
}

std::vector<Config::Leaf> Config::leaves() const {
  const toml::node* node = path_.empty() ? &source_->root : find(source_->root, path_);
  std::vector<Leaf> out;
  if (node == nullptr || !node->is_table()) return out;
  add_leaves(*node->as_table(), "", out);
  for (const Leaf& leaf : out)
    for (std::string p = full(leaf.path); p != path_ && !p.empty(); p = all_but_last_of(p))
      source_->asked.insert(p);
  return out;
}

std::string Config::toml() const {
  std::string out;
  leaves();
  const toml::node* node = path_.empty() ? &source_->root : find(source_->root, path_);
  if (const toml::table* table = node == nullptr ? nullptr : node->as_table())
    for (const auto& [key, value] : *table)
      out += fmt::format("{} = {}\n", quoted(key), text_of(value));
  return out;
}

}  // namespace rehearse
