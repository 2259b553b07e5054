// Model files: the shipped ones, what each key does to parameters, work and memory, and the error
// message of every wrong file.
#include "engine/model/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/errors.h"
#include "engine/model/model.h"
#include "tests/engine/reference.h"

namespace rehearse::model {
namespace {

std::int64_t without_padding(const ModelSpec& m) {
  const std::int64_t padding = m.padded_vocab - m.vocab;
  const std::int64_t tables = padding * m.hidden * (m.tied ? 1 : 2);
  return parameters_of(m) - tables - (m.family == Family::bert ? padding : 0);
}

TEST(ModelFile, ShipsTheModelsOfTheField) {
  for (const auto& [name, parameters] : std::vector<std::pair<std::string, std::int64_t>>{
           {"gpt2-124m", 124'439'808},      {"gpt2-1.5b", 1'557'611'200},
           {"bert-large", 335'174'458},     {"bert-1.3b", 1'279'423'744},
           {"llama-7b", 6'738'415'616},     {"llama2-70b", 68'976'648'192},
           {"llama3-8b", 8'030'261'248},    {"llama3-405b", 405'853'388'800},
           {"mistral-7b", 7'241'732'096},   {"qwen3-0.6b", 596'049'920},
           {"qwen3-8b", 8'190'735'360},     {"qwen3-32b", 32'762'123'264},
           {"gemma2-2b", 2'614'341'888},    {"gemma2-9b", 9'241'705'984},
           {"gemma2-27b", 27'227'128'320},  {"phi3-mini", 3'821'079'552},
           {"phi3-medium", 13'960'238'080}, {"mistral-nemo-12b", 12'247'782'400},
           {"qwen2-0.5b", 494'032'768},     {"qwen2-1.5b", 1'543'714'304},
           {"qwen2-7b", 7'615'616'512},     {"qwen2-72b", 72'706'203'648},
           {"gemma-2b", 2'506'172'416},     {"gemma-7b", 8'537'680'896},
           {"gemma3-1b", 999'885'952},      {"gemma3-4b", 3'880'263'168},
           {"gemma3-12b", 11'766'034'176},  {"gemma3-27b", 27'009'346'304}}) {
    EXPECT_EQ(without_padding(load_model(name, 0)), parameters) << name;
  }
  EXPECT_NEAR(double(parameters_of(load_model("gpt3-175b", 0))), 175e9, 1e9);
  EXPECT_NEAR(double(parameters_of(load_model("gpt-1t", 0))), 1.008e12, 0.5e9);
  EXPECT_NEAR(double(parameters_of(load_model("bert-paper-110m", 0))), 110e6, 1.5e6);
  EXPECT_GE(known_models().size(), 11U);
  for (const std::string& name : known_models()) EXPECT_EQ(load_model(name, 0).name, name);
}

TEST(ModelFile, OfAWindowCountsWhatATokenAttendsTo) {
  ModelSpec m = load_model("mistral-7b", 0);
  const Flops windowed = model_flops(m, 1),
              pass = work_of(m, 1, program::Pass::forward, 1, 1, program::DType::bf16).flops;
  EXPECT_EQ(attention_span(m, 0), 4096);
  m.window = 0;
  // 12 L h s a token, and 4 h s for the two products of a segment's forward.
  EXPECT_NEAR(model_flops(m, 1).value - windowed.value, 12.0 * 32 * 4096 * 4096, 1e4);
  EXPECT_NEAR(
      work_of(m, 1, program::Pass::forward, 1, 1, program::DType::bf16).flops.value - pass.value,
      4.0 * 4096 * 4096 * 8192, 1e6);
  // A window longer than the sequence changes nothing.
  EXPECT_EQ(attention_span(load_model("mistral-7b", 2048), 0), 2048);
}

// Heads of 128 elements where hidden / heads is 160: the products of attention have 4,096 columns
// or rows, and so have the two products with (tokens, tokens).
TEST(ModelFile, OfOtherHeadsCountsTheirSize) {
  const ModelSpec m = load_model("mistral-nemo-12b", 4096);
  const double h = 5120, width = 32 * 128, kv = 8 * 128, s = 4096, tokens = 4096;
  for (const int tp : {1, 4}) {
    EXPECT_EQ(work_of(m, 1, program::Pass::forward, 1, tp, program::DType::bf16).flops.value,
              tokens * (2 * h * (2 * width + 2 * kv) + 4 * width * s) / tp);
    // The norm's output; query, key, value and output; the norm's and the softmax' statistics.
    EXPECT_EQ(double(saved_bytes(m, 1, 1, tp, program::DType::bf16)),
              tokens * (2 * h + 2 * (2 * width + 2 * kv) / tp + 4 + 4 * 32.0 / tp));
  }
  const double tables = 131072 * h;
  EXPECT_EQ(model_flops(m, 1).value, 6 * (12'247'782'400 - tables) + 12.0 * 40 * width * s);
  EXPECT_EQ(tensor_divisor(m), 8);
}

TEST(ModelFile, OfQwenHasBiasesOfQueriesKeysAndValuesAlone) {
  ModelSpec with = load_model("qwen2-7b", 0);
  std::vector<std::string> biases;
  for (const Id group : with.segments[1].groups)
    for (const TensorSpec& tensor : with.groups[group].tensors)
      if (tensor.name.ends_with("bias")) biases.push_back(tensor.name.substr(15));
  EXPECT_THAT(biases, testing::ElementsAre("self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                           "self_attn.v_proj.bias"));
  ModelSpec without = with;
  without.qkv_bias = false;
  without = build_model(without);
  EXPECT_EQ(parameters_of(with) - parameters_of(without), 28 * (3584 + 2 * 512));
  // Backward sums the gradients of all tokens for each of the three biases.
  const auto kernels = [](const ModelSpec& m) {
    return work_of(m, 1, program::Pass::backward, 1, 1, program::DType::bf16).kernels;
  };
  EXPECT_EQ(kernels(with) - kernels(without), 3);
  with.family = Family::gpt;
  EXPECT_THROW(build_model(with), InputError);
}

// The norms of queries and keys read and write them, keep their inputs and a number for each head.
TEST(ModelFile, OfNormsOfHeadsCountsTheirKernelsAndWhatTheyKeep) {
  const ModelSpec with = load_model("qwen3-8b", 4096);
  ModelSpec without = with;
  without.qk_norm = false;
  without = build_model(without);
  EXPECT_EQ(parameters_of(with) - parameters_of(without), 36 * 2 * 128);
  const double tokens = 4096, heads = 32 + 8, bytes = 2 * heads * 128, statistics = 4 * heads;
  for (const int tp : {1, 8}) {
    const auto more = [&](const auto& of) { return of(with) - of(without); };
    EXPECT_EQ(
        more([&](const ModelSpec& m) { return saved_bytes(m, 1, 1, tp, program::DType::bf16); }),
        tokens * (bytes + statistics) / tp);
    for (const auto& [pass, each, kernels] :
         {std::tuple{program::Pass::forward, 2 * bytes + statistics, 2},
          {program::Pass::backward, 5 * bytes + 2 * statistics, 4}}) {
      const auto work = [tp, pass = pass](const ModelSpec& m) {
        return work_of(m, 1, pass, 1, tp, program::DType::bf16);
      };
      EXPECT_EQ(more([&](const ModelSpec& m) { return work(m).traffic.value; }),
                tokens * each / tp);
      EXPECT_EQ(more([&](const ModelSpec& m) { return work(m).kernels; }), kernels);
      EXPECT_EQ(more([&](const ModelSpec& m) { return work(m).flops.value; }), 0);
    }
  }
}

TEST(ModelFile, TakesAnotherSequenceLength) {
  EXPECT_EQ(load_model("gpt2-124m", 0).seq_len, 1024);
  EXPECT_EQ(load_model("gpt2-124m", 256).seq_len, 256);
  // The position table keeps the size of the model file.
  EXPECT_EQ(parameters_of(load_model("gpt2-124m", 256)), parameters_of(load_model("gpt2-124m", 0)));
  try {
    load_model("gpt2-124m", 4096);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("seq_len = 4096 is beyond max_positions = 1024"));
  }
}

TEST(ModelFile, NamesWhatIsWrong) {
  const auto message = [](const std::string& text) -> std::string {
    const std::string path = testing::TempDir() + "/mine.toml";
    std::ofstream(path) << text;
    try {
      load_model(path, 0);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const std::string good = "family = \"gpt\"\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 512\n";
  EXPECT_EQ(message(good + "seq_len = 64\n"), "");
  EXPECT_THAT(message(good), testing::HasSubstr("seq_len"));
  EXPECT_THAT(message(good + "seq_len = 64\nhiden = 3\n"), testing::HasSubstr("hidden"));
  EXPECT_THAT(message(good + "seq_len = 64\nfamily = \"gtp\"\n"), testing::HasSubstr("mine.toml"));
  EXPECT_THAT(message("family = \"bort\""), testing::HasSubstr("bert"));
  EXPECT_THAT(message("family = \"gpt\"\nlayers = 2\nhidden = 64\nheads = 5\nvocab = 512\n"
                      "seq_len = 64\n"),
              testing::AllOf(testing::HasSubstr("mine.toml"),
                             testing::HasSubstr("heads = 5 does not divide hidden = 64")));
}

TEST(ModelFile, PositionsAreOfRotaryModels) {
  const auto message = [](const std::string& family, const std::string& more) -> std::string {
    const std::string path = testing::TempDir() + "/positions.toml";
    std::ofstream(path) << "family = \"" << family
                        << "\"\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 512\nseq_len = 64\n"
                        << more;
    try {
      load_model(path, 0);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  for (const char* more : {"window = 8\n", "rope_theta = 500000\n", "rope_scaling.factor = 8\n"}) {
    EXPECT_EQ(message("llama", more), "") << more;
    EXPECT_THAT(message("gpt", more), testing::HasSubstr("only llama has")) << more;
  }
  EXPECT_THAT(message("llama", "rope_scaling = { low = 4, high = 4 }\n"),
              testing::HasSubstr("rope_scaling.high = 4 must be above low = 4"));
  EXPECT_EQ(message("llama", "rope_scaling = { type = \"yarn\", factor = 4, attention = 1.2 }\n"),
            "");
  EXPECT_EQ(message("llama", "rope_scaling = { type = \"linear\", factor = 4 }\n"), "");
  EXPECT_THAT(message("llama", "rope_scaling = { factor = 4, attention = 1.2 }\n"),
              testing::HasSubstr("rope_scaling.attention = 1.2 is of yarn and longrope"));
  EXPECT_THAT(message("llama", "rope_scaling = { type = \"longrope\", factor = 4 }\n"),
              testing::AllOf(testing::HasSubstr("positions.toml:7: key \"rope_scaling.type\""),
                             testing::HasSubstr("config.json alone")));
}

TEST(ModelFile, EveryNumberHasARange) {
  const std::string path = testing::TempDir() + "/ranged.toml";
  const auto error = [&](const std::string& key, const std::string& value) {
    std::ofstream out(path);
    out << "family = \"gpt\"\n";
    for (const char* needed : {"layers", "hidden", "heads", "vocab", "seq_len"})
      if (key != needed) out << needed << " = 1\n";
    out << key << " = " << value << "\n";
    out.close();
    try {
      load_model(path, 0);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  for (const Config::Key& key : model_keys()) {
    if (key.type != "integer" && key.type != "number") continue;
    for (const char* wrong : {"-1", "2147483648", "1e300", "\"many\""})
      EXPECT_THAT(error(key.path, wrong),
                  testing::AllOf(testing::StartsWith(path + ":"),
                                 testing::HasSubstr(": key \"" + key.path + "\": ")))
          << wrong;
  }
  EXPECT_EQ(error("dropout", "0.5"), "no error");
}

TEST(ModelFile, DocumentationListsExactlyTheKeysThatTheReaderKnows) {
  test::expect_documented("docs/model.md", model_keys());
}

}  // namespace
}  // namespace rehearse::model
