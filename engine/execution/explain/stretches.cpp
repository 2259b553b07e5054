#include "engine/execution/explain/stretches.h"

#include "engine/base/names.h"

namespace rehearse::execution {
namespace {

class Builder {
 public:
  Builder(const History& history, const model::ModelSpec& model, const WorkParts& parts)
      : history_(history), model_(model), parts_(parts) {}

  void add(const PathOp& at) {
    Stretch one = single(at);
    if (!out_.empty() && same_row(out_.back(), one)) return join(out_.back(), one);
    // What lies between two segments of a pass belongs to the pass.
    for (std::size_t k = out_.size(); one.micro_batch >= 0 && k-- > 0;) {
      if (out_[k].role != one.role || out_[k].place != one.place) break;
      if (out_[k].micro_batch < 0) continue;
      if (!same_row(out_[k], one)) break;
      for (std::size_t i = k + 1; i < out_.size(); ++i) join(out_[k], out_[i]);
      join(out_[k], one);
      out_.resize(k + 1);
      return;
    }
    out_.push_back(std::move(one));
  }
  std::vector<Stretch> take() { return std::move(out_); }

 private:
  Stretch single(const PathOp& at) const {
    Stretch out{.role = at.op.role,
                .place = at.op.place,
                .rank = history_.rank_of(at.op.role, at.op.place),
                .ranks = history_.ranks_at(at.op.role, at.op.place),
                .ops = 1,
                .start = at.start,
                .end = at.end};
    if (at.op.op == none) {
      out.what = "waiting";
      return out;
    }
    const WorkPart& part = parts_.all()[parts_.of(at.op.role, at.op.op)];
    out.what = part.name;
    if (part.kind == PartKind::communication) out.communication_s = out.seconds();
    if (part.kind == PartKind::host) out.host_s = out.seconds();
    const program::Work& work = history_.linked().program.roles[at.op.role].ops[at.op.op].work;
    if (const auto* c = std::get_if<program::Compute>(&work)) {
      out.what = name_of(c->pass == program::Pass::forward ? c->pass : program::Pass::backward);
      out.micro_batch = c->microbatch;
      out.from = out.to = model_.segments[c->segment].name;
    }
    return out;
  }
  static bool same_row(const Stretch& a, const Stretch& b) {
    return a.role == b.role && a.place == b.place && a.what == b.what &&
           a.micro_batch == b.micro_batch;
  }
  static void join(Stretch& into, const Stretch& next) {
    into.end = next.end;
    into.ops += next.ops;
    into.communication_s += next.communication_s;
    into.host_s += next.host_s;
    if (next.micro_batch >= 0) into.to = next.to;
  }

  const History& history_;
  const model::ModelSpec& model_;
  const WorkParts& parts_;
  std::vector<Stretch> out_ = {};
};

}  // namespace

std::vector<Stretch> stretches(const History& history, const model::ModelSpec& model,
                               const WorkParts& parts, std::span<const PathOp> path) {
  Builder builder(history, model, parts);
  for (const PathOp& at : path) builder.add(at);
  return builder.take();
}

}  // namespace rehearse::execution
