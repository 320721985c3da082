// engine/added_rows.h: a vocabulary larger than that of the weights a run starts from.
//
// Each row that embedding and head gain is the mean of the rows they had (Hewitt 2021, "Initializing new word embeddings
// for pretrained language models"): in front of the first step a new token is as likely as an average one, where a row
// drawn at random, with logits near 0, would outbid most tokens of a trained model. The mean is taken in double, row by row
// in their order, so it depends on the source alone and on no layout. Rows are told apart by their first updates.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/piece.h"
#include "engine/open_model.h"

namespace keel {

// Cuts `pieces` of embedding and head to the first `vocab` rows, which the source has; returns what was cut off.
std::vector<TensorPiece> take_added_rows(std::vector<TensorPiece>& pieces, std::int64_t vocab);

// Reads one matrix of the source, block by block, for each one that has rows among `added`.
void fill_added_rows(const ModelSource& source, const std::vector<TensorPiece>& added);

}  // namespace keel
