// The command line of `rehearse train`. Its work is in cli/train/.
#include <memory>

#include "cli/commands/training.h"
#include "cli/console/command.h"

namespace rehearse::cli {

void add_train(CLI::App& app, Context& context) {
  const Command command(
      app, context, "train", "Really train a job, in real processes",
      "  rehearse train experiments/demo-ddp.toml --nproc 2\n"
      "  rehearse train experiments/demo-ddp.toml --nproc 2 --resume --set train.steps=120\n"
      "  rehearse train planned.toml --nproc 4 --rehearsed\n"
      "  torchrun --no-python --nproc-per-node 2 rehearse train experiments/demo-ddp.toml");
  auto options = std::make_shared<TrainFlags>();
  command.job(options->job).required();
  const Option nproc =
      command
          .option("--nproc", options->nproc,
                  "Start so many ranks here; without it, be one rank of a launcher")
          .between(1, 4096);
  const Option nnodes =
      command
          .option("--nnodes", options->nnodes,
                  "Elastic: go on with so many nodes, each with a launcher and up to --nproc "
                  "ranks, as they come and go")
          .type("MIN:MAX")
          .needs(nproc);
  command
      .option("--rendezvous", options->rendezvous,
              "Folder in which launchers of --nnodes meet, shared by all nodes; without it, "
              "rendezvous in train.out")
      .type("FOLDER")
      .needs(nnodes);
  const Option resume =
      command.flag("--resume", options->resume, "Go on from the newest checkpoint in train.out");
  const Option from = command
                          .option("--resume-from", options->resume_from,
                                  "Go on from this checkpoint, or the newest in this folder")
                          .type("PATH")
                          .excludes(resume);
  command
      .flag("--overwrite", options->overwrite,
            "Begin anew where train.out holds a run, which is removed")
      .excludes(resume)
      .excludes(from);
  command.flag("--rehearsed", options->rehearsed,
               "Refuse a plan that was not rehearsed, or rehearsed badly");
  command
      .option("--faults", options->faults,
              "Ranks replay this fault trace on themselves (as faults.trace of the job)")
      .type("FILE");
  command
      .option("--import", options->weights,
              "Begin with the weights of Hugging Face's model.safetensors or its index")
      .type("FILE");
  command
      .option("--export", options->out_weights,
              "Write the last weights as Hugging Face's model.safetensors")
      .type("FILE");
  command.option("--trace", options->trace, "Write a Chrome/Perfetto trace of the first steps")
      .type("FILE");
  command
      .option("--profile-out", options->profile_out,
              "Observe how each layer's gradient varies and write it into this profile")
      .type("FILE");
  command.runs([&context, options] {
    options->resume = options->resume || !options->resume_from.empty();
    return training().train(context, *options);
  });
}

}  // namespace rehearse::cli
