// Keys of a job that change its model, and how the model is cut into stages and recomputed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "engine/job/job.h"
#include "engine/methods/strategy.h"
#include "engine/model/model_file.h"
#include "tests/message_of.h"

namespace rehearse::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const char* const base = "cluster.name = \"dgx-a100:2\"\nmethod.name = \"megatron\"\n";

Job parse(const std::vector<std::string>& overrides, const std::string& model = "gpt2-124m") {
  return parse_job("model.name = \"" + model + "\"\n" + base, "job.toml", overrides);
}
model::ModelSpec model_of(const std::vector<std::string>& overrides,
                          const std::string& model = "gpt2-124m") {
  return parse(overrides, model).model;
}
std::string error_of(const std::vector<std::string>& overrides) {
  return test::message_of([&] { parse(overrides); });
}

TEST(ModelKeys, ReplaceThoseOfTheModelFile) {
  const model::ModelSpec plain = model_of({});
  EXPECT_EQ(plain.name, "gpt2-124m");
  const model::ModelSpec m =
      model_of({"model.layers=24", "model.hidden=1024", "model.heads=16", "model.ffn=2048",
                "model.vocab=1000", "model.padded_vocab=1024", "model.max_positions=4096",
                "model.dropout=0.1", "train.seq_len=2048"});
  EXPECT_EQ(m.layers, 24);
  EXPECT_EQ(m.segments.size(), 2U + 48U);
  EXPECT_EQ(m.hidden, 1024);
  EXPECT_EQ(m.heads, 16);
  EXPECT_EQ(m.ffn, 2048);
  EXPECT_EQ(m.vocab, 1000);
  EXPECT_EQ(m.padded_vocab, 1024);
  EXPECT_EQ(m.max_positions, 4096);
  EXPECT_EQ(m.seq_len, 2048);
  EXPECT_EQ(m.dropout, 0.1);
  EXPECT_EQ(m.family, plain.family);
  EXPECT_EQ(m.tied, plain.tied);
}

TEST(ModelKeys, SizesThatDependOnAChangedOneGetTheirDefaultAgain) {
  // The feed-forward width follows hidden, the padded vocabulary the vocabulary, also where the
  // model's file states them.
  const std::string path = testing::TempDir() + "/stated.toml";
  std::ofstream(path) << "family = \"gpt\"\nlayers = 12\nhidden = 768\nheads = 12\nvocab = 500\n"
                         "ffn = 960\npadded_vocab = 960\nseq_len = 64\n";
  EXPECT_EQ(model_of({}, path).ffn, 960);
  EXPECT_EQ(model_of({"model.layers=24"}, path).ffn, 960);
  EXPECT_EQ(model_of({"model.layers=24"}, path).padded_vocab, 960);
  const model::ModelSpec m = model_of({"model.hidden=1536", "model.vocab=1000"}, path);
  EXPECT_EQ(m.ffn, 4 * 1536);
  EXPECT_EQ(m.padded_vocab, 1024);
  EXPECT_EQ(model_of({"model.ffn=96", "model.hidden=1536"}).ffn, 96);  // unless it is stated
  // Key-value heads follow the heads.
  const model::ModelSpec grouped = model::load_model("llama3-8b", 0);
  ASSERT_LT(grouped.kv_heads, grouped.heads);
  EXPECT_EQ(model_of({"model.heads=64"}, "llama3-8b").kv_heads, 64);
  EXPECT_EQ(model_of({"model.heads=64", "model.kv_heads=8"}, "llama3-8b").kv_heads, 8);
  // The size of a head follows hidden and heads.
  EXPECT_EQ(model_of({"model.layers=4"}, "mistral-nemo-12b").head_dim, 128);
  EXPECT_EQ(model_of({"model.hidden=2048"}, "mistral-nemo-12b").head_dim, 64);
  EXPECT_EQ(model_of({"model.heads=64"}, "mistral-nemo-12b").head_dim, 80);
  EXPECT_EQ(model_of({"model.hidden=4096", "model.head_dim=96"}, "mistral-nemo-12b").head_dim, 96);
  // What does not depend on a changed key keeps the file's value.
  EXPECT_EQ(model_of({"model.layers=4"}, "llama3-8b").kv_heads, grouped.kv_heads);
  EXPECT_EQ(model_of({"model.layers=4"}, "llama3-8b").ffn, grouped.ffn);
}

TEST(ModelKeys, ReplaceThemAsAnotherFileWould) {
  const std::string path = testing::TempDir() + "/changed.toml";
  std::ofstream(path) << "family = \"gpt\"\nlayers = 6\nhidden = 384\nheads = 6\nvocab = 50257\n"
                         "seq_len = 1024\nmax_positions = 1024\n";
  const model::ModelSpec stated = model::load_model(path, 0);
  const model::ModelSpec changed =
      model_of({"model.layers=6", "model.hidden=384", "model.heads=6"});
  EXPECT_EQ(parameters_of(changed), parameters_of(stated));
  ASSERT_EQ(changed.groups.size(), stated.groups.size());
  for (Id g = 0; g < stated.groups.size(); ++g)
    EXPECT_EQ(elements_of(changed.groups[g], 2), elements_of(stated.groups[g], 2));
}

TEST(ModelKeys, TheNameSaysWhatWasChanged) {
  EXPECT_EQ(model_of({"model.layers=24"}).name, "gpt2-124m+layers=24");
  EXPECT_EQ(model_of({"model.heads=16", "model.hidden=1024"}).name,
            "gpt2-124m+hidden=1024,heads=16");
  EXPECT_EQ(model_of({"model.dropout=0.1"}).name, "gpt2-124m+dropout=0.1");
  EXPECT_EQ(model_of({"train.seq_len=128"}).name, "gpt2-124m");
}

TEST(ModelKeys, ThatDoNotFitAreRefused) {
  EXPECT_THAT(error_of({"model.heads=7"}),
              AllOf(HasSubstr("heads = 7 does not divide hidden = 768"), HasSubstr("nearest")));
  EXPECT_THAT(error_of({"model.padded_vocab=1000"}), HasSubstr("must be at least vocab"));
  EXPECT_THAT(error_of({"model.layer=3"}),
              AllOf(StartsWith("--set model.layer=3: key \"model.layer\": "),
                    HasSubstr("did you mean \"layers\"?")));
}

TEST(PartitionKey, GivesEachStageEquallyManyLayers) {
  const Job job = parse({"method.pp=4", "method.partition=layers"});
  const model::ModelSpec& model = job.model;
  ASSERT_EQ(job.plan.placement.stages.size(), 4U);
  Id next = 0;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    int layers = 0;
    for (const Id s : job.plan.placement.stages[stage]) {
      EXPECT_EQ(s, next++);
      layers += model.segments[s].kind == model::SegmentKind::mlp;
    }
    EXPECT_EQ(layers, 3) << "stage " << stage;
  }
  EXPECT_EQ(next, model.segments.size());
  EXPECT_EQ(model.segments[job.plan.placement.stages[0].front()].kind,
            model::SegmentKind::embedding);
  EXPECT_EQ(model.segments[job.plan.placement.stages[3].back()].kind, model::SegmentKind::head);
  // Equal work gives the stage of the head fewer layers.
  const Job work = parse({"method.pp=4"});
  EXPECT_EQ(work.plan.placement.stages,
            parse({"method.pp=4", "method.partition=work"}).plan.placement.stages);
  EXPECT_NE(work.plan.placement.stages, job.plan.placement.stages);
}

TEST(PartitionKey, CountsModelChunksOfInterleavedStages) {
  const Job job = parse({"method.name=interleaved", "method.pp=2", "method.virtual_stages=3",
                         "method.partition=layers"});
  std::vector<std::size_t> sizes;
  for (const auto& chunk : job.plan.placement.stages) sizes.push_back(chunk.size());
  EXPECT_THAT(sizes, ElementsAre(5, 4, 4, 4, 4, 5));
}

/// The layers of each model chunk.
std::vector<int> layers_of(const std::vector<std::string>& sets) {
  const Job job = parse(sets);
  std::vector<int> out;
  for (const auto& chunk : job.plan.placement.stages)
    out.push_back(static_cast<int>(std::ranges::count_if(
        chunk, [&](Id s) { return job.model.segments[s].kind == model::SegmentKind::attention; })));
  return out;
}

TEST(StageLayersKey, SaysTheLayersOfEachChunk) {
  EXPECT_THAT(layers_of({"method.pp=4", "method.stage_layers=[2,4,3,3]"}), ElementsAre(2, 4, 3, 3));
  EXPECT_THAT(layers_of({"method.pp=2", "method.stage_layers=[7,5]"}), ElementsAre(7, 5));
  // Of the first chunk, of each other and of the last one.
  EXPECT_THAT(layers_of({"method.pp=4", "method.stage_layers=[3,4,1]"}), ElementsAre(3, 4, 4, 1));
  EXPECT_THAT(layers_of({"method.name=interleaved", "method.pp=2", "method.virtual_stages=3",
                         "method.stage_layers=[1,2,3]"}),
              ElementsAre(1, 2, 2, 2, 2, 3));
  // The embedding and the head alone.
  EXPECT_THAT(layers_of({"method.pp=4", "method.stage_layers=[0,6,0]"}), ElementsAre(0, 6, 6, 0));
  // So there may be more stages than layers.
  EXPECT_THAT(layers_of({"method.pp=4", "model.layers=2", "method.stage_layers=[0,1,0]"}),
              ElementsAre(0, 1, 1, 0));
  // As torchtitan and Llama 3 divide 126 layers: one layer less on the first and the last stage.
  EXPECT_THAT(layers_of({"method.pp=8", "cluster.world_size=8", "model.layers=126",
                         "method.stage_layers=[15,16,15]"}),
              ElementsAre(15, 16, 16, 16, 16, 16, 16, 15));
}

TEST(StageLayersKey, IsRefusedWithAListThatFits) {
  const auto said = [](const std::string& list, const std::string& more = "method.pp=4") {
    return error_of({"method.stage_layers=" + list, more});
  };
  EXPECT_THAT(said("[3,3]"),
              AllOf(StartsWith("--set method.stage_layers=[3,3]: key \"method.stage_layers\": "),
                    HasSubstr("a number for each of the 4 model chunks (pp 4 x virtual_stages 1)"),
                    HasSubstr("not 2; such as [3, 3, 3]")));
  EXPECT_THAT(said("[3,4,2]"), HasSubstr("first + 2 x each + last must sum to the 12 layers of "
                                         "gpt2-124m, not to 13; such as [3, 3, 3]"));
  EXPECT_THAT(said("[5,5,1,2]"), HasSubstr("the numbers must sum to the 12 layers of gpt2-124m, "
                                           "not to 13"));
  EXPECT_THAT(said("[6,0,6]"), HasSubstr("a chunk between the first and the last must have at "
                                         "least 1 layer; such as [3, 3, 3]"));
  EXPECT_THAT(said("[3,3,3]", "method.partition=work"),
              HasSubstr("does not combine with method.partition = \"work\""));
  EXPECT_THAT(error_of({"method.pp=8", "cluster.world_size=8", "model.layers=126",
                        "method.stage_layers=[16,16,16]"}),
              HasSubstr("not to 128; such as [15, 16, 15]"));
}

TEST(PartitionKey, LayersThatDoNotDivideAreRefusedWithTheNearest) {
  const std::string message =
      error_of({"method.pp=8", "method.partition=layers", "cluster.world_size=8"});
  EXPECT_THAT(message,
              AllOf(StartsWith("--set method.partition=layers: key \"method.partition\": "),
                    HasSubstr("8 model chunks must divide the 12 layers of gpt2-124m"),
                    HasSubstr("nearest: 6"), HasSubstr("\"work\"")));
  EXPECT_EQ(error_of({"method.pp=6", "method.partition=layers", "cluster.world_size=6"}),
            "no error");
  EXPECT_EQ(error_of({"method.pp=8", "cluster.world_size=8"}), "no error");
  EXPECT_THAT(error_of({"method.partition=layer"}),
              AllOf(HasSubstr("\"method.partition\""), HasSubstr("work, layers")));
}

TEST(RecomputeUnitKey, IsASegmentUnlessAJobSaysALayer) {
  EXPECT_EQ(parse({}).plan.schedule.recompute_unit, plan::RecomputeUnit::segment);
  const plan::Plan layers = parse({"method.recompute=true", "method.recompute_unit=layer"}).plan;
  EXPECT_TRUE(layers.schedule.recompute);
  EXPECT_EQ(layers.schedule.recompute_unit, plan::RecomputeUnit::layer);
  EXPECT_FALSE(parse({"method.recompute_unit=layer"}).plan.schedule.recompute);
  EXPECT_THAT(
      error_of({"method.recompute_unit=layers"}),
      AllOf(HasSubstr("\"method.recompute_unit\""), HasSubstr("segment, layer, attention")));
}

}  // namespace
}  // namespace rehearse::job
